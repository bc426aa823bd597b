"""In which order the samples of a dataset lie on disk."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from precompile.format.index import open_array
from precompile.format.schema import ALIGNMENT
from precompile.format.stored import Stored
from precompile.loading.caching.part import SOURCE_LENGTHS
from precompile.loading.dataset import CompiledDataset
from precompile.loading.sampling.sorting import stable_argsort
from precompile.loading.sampling.subset import index_rows, unwrap

_CHUNK = 1 << 18
"""Rows of the index that are looked at together."""


@dataclass(frozen=True, slots=True, eq=False)
class StorageOrder:
    """The samples by shard and by offset in it."""

    count: int
    positions: np.ndarray | None
    """int32 (int64 from 2^31 samples on) (count,): positions in the dataset; None when 0 … count - 1 is the order."""
    mean_record_bytes: float
    """With the padding behind each; 0.0 when there are no samples. In the source, also where a cache has less."""

    def checksum(self) -> int:
        """Differs when the order does."""
        return 0 if self.positions is None else zlib.crc32(self.positions.data)

    def position(self, ranks: np.ndarray) -> np.ndarray:
        """int64 (n,) places in this order -> int64 (n,) positions in the dataset."""
        return ranks if self.positions is None else self.positions[ranks].astype(np.int64)


def storage_order(dataset: Any) -> StorageOrder:
    """Of a CompiledDataset or a Subset of one, whose positions it gives. Peak memory: 4 bytes a sample, and a shard's.

    Raises TypeError for another dataset, FormatError when a record lies outside of its shard.
    """
    rows = _Rows(*unwrap(dataset))
    per_shard = np.zeros(len(rows.dataset.stored.shards.sizes), np.int64)
    num_bytes, last, is_sorted = 0, -1, True
    for positions in rows.chunks():
        chunk = rows.at(positions)
        places, _ = rows.dataset.stored.extents(chunk)
        is_sorted = is_sorted and last <= int(places[0]) and bool((places[1:] >= places[:-1]).all())
        last, num_bytes = int(places[-1]), num_bytes + int((-(-rows.lengths[chunk] // ALIGNMENT)).sum()) * ALIGNMENT
        per_shard += np.bincount(rows.record[chunk, 0], minlength=len(per_shard))
    mean = num_bytes / max(1, rows.count)
    return StorageOrder(rows.count, None if is_sorted else _sorted(rows, per_shard), mean)


class _Rows:
    """The rows of the index that a dataset's samples have."""

    def __init__(self, dataset: CompiledDataset, positions: np.ndarray | None) -> None:
        self.dataset = dataset
        self.count = len(dataset) if positions is None else len(positions)
        self._rows = index_rows(dataset, positions)
        self.record = dataset.stored.index.record
        self.lengths = _source_lengths(dataset.stored)

    def at(self, positions: np.ndarray) -> np.ndarray:
        rows: np.ndarray = positions + self._rows.start if isinstance(self._rows, slice) else self._rows[positions]
        return rows

    def chunks(self) -> Iterator[np.ndarray]:
        """int64 (n,): positions that follow each other, up to _CHUNK at a time."""
        for start in range(0, self.count, _CHUNK):
            yield np.arange(start, min(start + _CHUNK, self.count))


def _source_lengths(stored: Stored) -> np.ndarray:
    """int64 (rows of the index,): bytes of each record where the dataset was built."""
    if SOURCE_LENGTHS not in stored.manifest.index:
        return stored.index.record[:, 2]
    return open_array(stored.index.directory / SOURCE_LENGTHS, "int64", (stored.manifest.count,))


def _sorted(rows: _Rows, per_shard: np.ndarray) -> np.ndarray:
    """The positions, put into their shards in one pass, then sorted by offset shard by shard."""
    order = np.empty(rows.count, np.int32 if rows.count < 2**31 else np.int64)
    ends = np.cumsum(per_shard)
    free = ends - per_shard
    for positions in rows.chunks():
        shard = rows.record[rows.at(positions), 0]
        counts = np.bincount(shard, minlength=len(free))
        by_shard = stable_argsort(shard)
        targets = np.repeat(free - (np.cumsum(counts) - counts), counts) + np.arange(len(positions))
        order[targets] = positions[by_shard]
        free += counts
    for begin, end in zip((ends - per_shard).tolist(), ends.tolist()):
        members = order[begin:end]
        offsets = rows.record[rows.at(members.astype(np.int64)), 1]
        order[begin:end] = members[stable_argsort(offsets // ALIGNMENT)]
    return order
