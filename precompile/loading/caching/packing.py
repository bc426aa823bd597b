"""Records in storage order -> flat shards that hold only what is wanted of them."""

from __future__ import annotations

import itertools
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precompile.errors import FormatError
from precompile.format.locate import fields_bytes
from precompile.format.schema import ALIGNMENT, align
from precompile.format.stored import Stored
from precompile.loading.caching.copying import Meter, new_checksum, open_sized, read_at, write_at
from precompile.loading.caching.unshared import opened

SHARD_BYTES = 4 << 30
MIN_SHARD_BYTES = 32 << 20
_SHARDS = 16
_BLOCK_BYTES = 1 << 20
_MAX_GAP_BYTES = 256 << 10
"""Unwanted bytes between two records that are rather read than jumped over."""


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Where each of r different records lies and comes to lie; r rows in storage order."""

    sample: np.ndarray
    """int64 (rows of the split,): the record of each sample. Samples may share one."""
    number: np.ndarray
    """int64 (r,): a sample that has the record, for messages."""
    shard: np.ndarray
    """int64 (r,): shard of the source."""
    offset: np.ndarray
    """int64 (r,): in that shard."""
    length: np.ndarray
    """int64 (r,): bytes of the whole record."""
    pieces: np.ndarray
    """int64 (r, fields, 3): of each wanted field, its place in the record, its place in the new one, and its bytes."""
    is_whole: bool
    """Whether all of each record is wanted."""
    record: np.ndarray
    """int64 (r, 3): as in the new index: shard, offset, length."""
    new_crc32: np.ndarray
    """uint32 (r,): filled by the packers."""
    firsts: np.ndarray
    """int64 (shards + 1,): the rows of new shard s are firsts[s] to firsts[s + 1]."""

    @property
    def num_shards(self) -> int:
        return len(self.firsts) - 1


def plan_packing(source: Stored, rows: slice, names: set[str] | None) -> Packing:
    """names: array fields; None is all of them. Raises FormatError when the index contradicts itself."""
    numbers = np.arange(rows.start, rows.stop, dtype=np.int64)
    places, _ = source.extents(numbers)
    _, first, sample = np.unique(places, return_index=True, return_inverse=True)
    numbers = numbers[first]
    places, lengths = source.extents(numbers)
    end = np.zeros(len(numbers), np.int64)
    pieces = []
    if names is None:
        pieces.append(np.stack([end, end, lengths], axis=1))
        end = lengths
    for name, located in source.fields(numbers).items() if names is not None and len(numbers) else ():
        if name in names:  # type: ignore[operator]
            start, sizes = -(-end // ALIGNMENT) * ALIGNMENT, fields_bytes(source.schema[name], located.shapes)
            pieces.append(np.stack([located.places - places, start, sizes], axis=1))
            end = start + sizes
    steps = -(-end // ALIGNMENT) * ALIGNMENT
    starts = np.cumsum(steps) - steps
    target = min(max(int(steps.sum()) // _SHARDS, MIN_SHARD_BYTES), SHARD_BYTES)
    groups, firsts = np.unique(starts // target, return_index=True)
    new_shard = np.repeat(np.arange(len(groups)), np.diff([*firsts, len(numbers)]))
    shard = source.shards.starts.searchsorted(places, side="right") - 1
    return Packing(
        sample.reshape(-1), numbers, shard, places - source.shards.starts[shard], lengths,
        np.stack(pieces, axis=1) if pieces else np.zeros((0, 0, 3), np.int64), names is None,
        np.stack([new_shard, ALIGNMENT + starts - starts[firsts][new_shard], end], axis=1),
        np.zeros(len(numbers), np.uint32), np.array([*firsts, len(numbers)], np.int64),
    )  # fmt: skip


class ShardPacker:
    """Writes one new shard over a reserved file.

    checksum: XXH3-128 of the file once it is packed; "" before.
    """

    def __init__(self, source: Stored, packing: Packing, number: int, file: str) -> None:
        self._source, self._packing, self.file = source, packing, file
        self._first, self._last = packing.firsts[number : number + 2].tolist()
        self._steps = -(-packing.record[self._first : self._last, 2] // ALIGNMENT) * ALIGNMENT
        self.num_records = self._last - self._first
        self.num_bytes = ALIGNMENT + int(self._steps.sum())
        self.checksum = ""
        self._paths = source.shard_paths
        self._buffers: dict[str, np.ndarray] = {}

    def pack(self, folder: Path, meter: Meter) -> None:
        """Raises FormatError naming shard and record when a record's checksum is not the index's."""
        pitch = int(self._steps[0]) if (self._steps == self._steps[0]).all() else 0
        header = struct.pack("<8sIIQQ", b"PCFLAT\r\n", 1, ALIGNMENT, self.num_records, pitch).ljust(ALIGNMENT, b"\0")
        digest = new_checksum()
        with opened(folder / self.file) as writing:
            digest.update(header)
            write_at(writing, memoryview(header), 0)
            meter.add(at := len(header))
            for first, last in self._runs():
                data = memoryview(self._packed(first, last))  # type: ignore[arg-type]
                digest.update(data)
                write_at(writing, data, at)
                at += len(data)
                meter.add(len(data))
        self.checksum = digest.hexdigest()
        self._buffers.clear()

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Rows that are read by one call: they lie close together in one shard of the source."""
        rows = slice(self._first, self._last)
        shard, offset = self._packing.shard[rows], self._packing.offset[rows]
        gaps = offset[1:] - (offset + self._packing.length[rows])[:-1]
        block = offset // _BLOCK_BYTES
        cuts = (np.diff(shard) != 0) | (gaps > _MAX_GAP_BYTES) | (np.diff(block) != 0)
        edges = [0, *(np.flatnonzero(cuts) + 1).tolist(), self.num_records]
        for first, last in itertools.pairwise(edges):
            yield self._first + first, self._first + last

    def _packed(self, first: int, last: int) -> np.ndarray:
        """The new bytes of some rows, uint8, with zeros up to the next multiple of 64; valid until the next call."""
        packing, rows = self._packing, slice(first, last)
        found, begins = self._read(rows)
        self._check(rows, found, begins)
        places = (packing.record[rows, 1] - packing.record[first, 1]).tolist()
        if packing.is_whole and begins == places:
            return found
        packed = self._buffer("packed", int(self._steps[first - self._first : last - self._first].sum()))
        packed[:] = 0
        for pieces, begin, place in zip(packing.pieces[rows], begins, places):
            for old, new, num_bytes in pieces.tolist():
                packed[place + new : place + new + num_bytes] = found[begin + old : begin + old + num_bytes]
        if not packing.is_whole:
            ends = zip(places, packing.record[rows, 2].tolist())
            packing.new_crc32[rows] = [zlib.crc32(packed[place : place + length].data) for place, length in ends]
        return packed

    def _read(self, rows: slice) -> tuple[np.ndarray, list[int]]:
        """The bytes from the first record to the last, with zeros up to a multiple of 64; where in them each begins."""
        packing, shard = self._packing, int(self._packing.shard[rows.start])
        start = int(packing.offset[rows.start])
        num_bytes = int((packing.offset[rows] + packing.length[rows]).max()) - start
        found = self._buffer("found", align(num_bytes))
        found[num_bytes:] = 0
        path = self._paths[shard]
        reading = open_sized(path, self._source.manifest.shards[shard].bytes)
        try:
            read_at(reading, memoryview(found)[:num_bytes], start, path)  # type: ignore[arg-type]
        finally:
            os.close(reading)
        return found, (packing.offset[rows] - start).tolist()

    def _check(self, rows: slice, found: np.ndarray, begins: list[int]) -> None:
        packing = self._packing
        expected = self._source.index.crc32[packing.number[rows]]
        for row, (begin, length) in enumerate(zip(begins, packing.length[rows].tolist())):
            if zlib.crc32(found[begin : begin + length].data) != expected[row]:
                raise self._damaged(rows.start + row)
        packing.new_crc32[rows] = expected

    def _buffer(self, name: str, num_bytes: int) -> np.ndarray:
        if num_bytes > len(self._buffers.get(name, b"")):
            self._buffers[name] = np.empty(num_bytes, np.uint8)
        return self._buffers[name][:num_bytes]

    def _damaged(self, row: int) -> FormatError:
        number = int(self._packing.number[row])
        path = self._paths[int(self._packing.shard[row])]
        return FormatError(
            f"{path}: the record at {self._packing.offset[row]} (sample {number}, {self._source.index.keys[number]}) "
            f"does not have its checksum; run `precompile verify {self._source.root} --full`"
        )
