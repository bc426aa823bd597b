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
    changed: tuple[str, ...]
    """Stored bytes differ, or how they are to be read, or a column other than the label."""
    relabelled: tuple[str, ...]
    """The class or the split differs, by name: numbers mean nothing across two class maps."""


def diff(old: Earlier, new: Earlier) -> Difference:
    """Compare by key. A renamed file is one that was removed and one that was added."""
    rows = match_keys(old.index.keys, new.index.keys)
    after = np.flatnonzero(rows >= 0)
    before = rows[after]
    gone = np.ones(old.manifest.count, bool)
    gone[before] = False
    return Difference(
        added=_keys(new, np.flatnonzero(rows < 0)),
        removed=_keys(old, np.flatnonzero(gone)),
        changed=_keys(new, after[_changed(old, new, before, after)]),
        relabelled=_keys(new, after[_relabelled(old, new, before, after)]),
    )


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
