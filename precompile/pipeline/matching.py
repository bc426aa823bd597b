"""Which key of one list is which in another, at 10^8 of them: sorted hashes instead of a dictionary of strings."""

from __future__ import annotations

import numpy as np
import xxhash

from precompile.format.text import TextColumn


def match_keys(old: TextColumn, new: TextColumn) -> np.ndarray:
    """int64 (len(new),): the row in `old` of every key of `new`, −1 where it has none. Keys are unique in each."""
    if len(old) == len(new) and np.array_equal(_bytes(old), _bytes(new)) and np.array_equal(_ends(old), _ends(new)):
        return np.arange(len(new), dtype=np.int64)
    rows = np.full(len(new), -1, np.int64)
    if not len(old) or not len(new):
        return rows
    old_hash, new_hash = _hashes(old), _hashes(new)
    order = np.argsort(old_hash, kind="stable")
    place = np.minimum(np.searchsorted(old_hash[order], new_hash), len(old) - 1)
    found = old_hash[order[place]] == new_hash
    rows[found] = order[place[found]]
    for position in _unequal(old, new, rows):  # two keys with one hash: practically never
        rows[position] = next((row for row, key in enumerate(old) if key == new[position]), -1)
    return rows


def _unequal(old: TextColumn, new: TextColumn, rows: np.ndarray) -> list[int]:
    """Positions in `new` that were matched to a row with another key."""
    positions = np.flatnonzero(rows >= 0)
    left, right = old.take(rows[positions]), new.take(positions)
    if np.array_equal(left.offsets, right.offsets) and np.array_equal(left.data, right.data):
        return []
    return [int(position) for position, a, b in zip(positions, left, right) if a != b]


def _bytes(keys: TextColumn) -> np.ndarray:
    found: np.ndarray = keys.data[keys.offsets[0] : keys.offsets[-1]]
    return found


def _ends(keys: TextColumn) -> np.ndarray:
    ends: np.ndarray = keys.offsets - keys.offsets[0]
    return ends


def _hashes(keys: TextColumn) -> np.ndarray:
    each = (xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape")) for key in keys)
    return np.fromiter(each, np.uint64, len(keys))
