"""What became different from one generation to another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precompile.pipeline.columns import differs, ids_of_labels, ids_of_names, take
from precompile.pipeline.earlier import Earlier
from precompile.pipeline.matching import match_keys


@dataclass(frozen=True, slots=True)
class Difference:
    """Keys of samples, in source order."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    """Old and new key of a file of the same content, class and split."""
    changed: tuple[str, ...]
    """Stored bytes differ, or how they are to be read, or a column other than the label."""
    relabelled: tuple[str, ...]
    """The class or the split differs, by name: numbers mean nothing across two class maps. The new key of a file that
    was moved to another class folder."""


def diff(old: Earlier, new: Earlier) -> Difference:
    """Compare by key, and what has no key in common by the content of the files."""
    rows = match_keys(old.index.keys, new.index.keys)
    after = np.flatnonzero(rows >= 0)
    before = rows[after]
    gone = np.ones(old.manifest.count, bool)
    gone[before] = False
    removed, added, moved_from, moved_to = _pair(old, new, np.flatnonzero(gone), np.flatnonzero(rows < 0))
    other_class = _relabelled(old, new, moved_from, moved_to)
    relabelled = np.sort(np.concatenate([after[_relabelled(old, new, before, after)], moved_to[other_class]]))
    return Difference(
        added=_keys(new, added),
        removed=_keys(old, removed),
        renamed=tuple(zip(_keys(old, moved_from[~other_class]), _keys(new, moved_to[~other_class]))),
        changed=_keys(new, after[_changed(old, new, before, after)]),
        relabelled=_keys(new, relabelled),
    )


def _pair(
    old: Earlier, new: Earlier, removed: np.ndarray, added: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What is left of removed and added rows, and the rows of files that were moved: before and after."""
    places: dict[tuple[int, int], list[int]] = {}
    for row, xxh3, size in zip(
        removed[::-1].tolist(), old.xxh3[removed[::-1]].tolist(), old.stat[removed[::-1], 0].tolist()
    ):
        places.setdefault((xxh3, size), []).append(row)
    pairs = []
    for row, xxh3, size in zip(added.tolist(), new.xxh3[added].tolist(), new.stat[added, 0].tolist()):
        if found := places.get((xxh3, size)):
            pairs.append((found.pop(), row))
    moved = np.array(pairs, np.int64).reshape(len(pairs), 2)
    return np.setdiff1d(removed, moved[:, 0]), np.setdiff1d(added, moved[:, 1]), moved[:, 0], moved[:, 1]


def _keys(generation: Earlier, rows: np.ndarray) -> tuple[str, ...]:
    return tuple(generation.index.keys.take(rows))


def _changed(old: Earlier, new: Earlier, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """bool (n,)"""
    if _layout(old) != _layout(new):
        return np.ones(len(before), bool)
    changed: np.ndarray = old.index.crc32[before] != new.index.crc32[after]
    changed |= old.index.record[before, 2] != new.index.record[after, 2]
    shapes = new.shapes(after)
    for name, shape in old.shapes(before).items():
        changed |= (shape != shapes[name]).any(axis=1)
    left, right = old.index.columns, new.index.columns
    for name in {*left, *right} - {"label"}:
        changed |= differs(take(left.get(name), before), take(right.get(name), after), len(before))
    return changed


def _layout(generation: Earlier) -> list[tuple[str, str, str, int]]:
    """What tells how the bytes of a record of some shape are to be read."""
    arrays = generation.manifest.schema.arrays
    return [(spec.name, spec.dtype, spec.encoding, len(spec.shape)) for spec in arrays]


def _relabelled(old: Earlier, new: Earlier, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """bool (n,)"""
    ids: dict[str, int] = {}
    found: np.ndarray = _labels(old, before, ids) != _labels(new, after, ids)
    found |= _splits(old, before, ids) != _splits(new, after, ids)
    return found


def _labels(generation: Earlier, rows: np.ndarray, ids: dict[str, int]) -> np.ndarray:
    return ids_of_labels(generation.index.columns.get("label"), rows, generation.manifest.classes, ids)


def _splits(generation: Earlier, rows: np.ndarray, ids: dict[str, int]) -> np.ndarray:
    splits = generation.manifest.splits
    ends = [split.start + split.count for split in splits]
    numbers = np.searchsorted(ends, rows, side="right")
    return ids_of_names(numbers, [split.name for split in splits], ids)
