"""Staging some fields or one split: their bytes are packed anew.

Rows of the index keep their numbers, so sample numbers, and what depends on them, are those of the whole dataset.
Records of other splits are not there: their rows say length 0, which is refused when read.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from precompile.errors import FormatError
from precompile.format.generation import generation_dir
from precompile.format.manifest import MANIFEST_NAME, IndexFile, Manifest, Shard
from precompile.format.schema import Schema
from precompile.format.stored import Stored
from precompile.loading.caching.copying import Job, checked_blocks, copy_file, new_checksum, write_over
from precompile.loading.caching.entries import Wanted
from precompile.loading.caching.packing import Packing, ShardPacker, plan_packing
from precompile.loading.caching.whole import manifest_sizes

SOURCE_LENGTHS = "source_lengths.npy"
"""int64 (n,): bytes of the records in the source. An order that depends on them is the one without a cache."""
_PENDING = "0" * 32
"""Stands for a checksum that is not known yet."""


class PartCopy:
    """What is copied to stage the wanted part. As WholeCopy.

    note: called with the bytes of the index that are checked, and with all that will be.
    Raises FormatError when the index is not what its manifest says.
    """

    def __init__(
        self, source: Stored, wanted: Wanted, note: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        manifest = source.manifest
        self._source, self._directory = source, generation_dir(source.root, manifest.generation)
        names = set(wanted.fields or (spec.name for spec in source.schema.arrays))
        specs = tuple(spec for spec in source.schema if spec.is_column or spec.name in names)
        self._check_index(["record.npy", "crc32.npy", *_shape_files(source.schema)], note)
        rows = slice(0, manifest.count)
        if wanted.split is not None:
            split = manifest.split(wanted.split)
            rows = slice(split.start, split.start + split.count)
        self._rows = rows
        self._packing: Packing = plan_packing(source, rows, None if wanted.fields is None else names)
        self._kept = {
            name: item for name, item in manifest.index.items()
            if name.startswith(("key.", "column.")) or name in _shape_files(Schema(specs))
        }  # fmt: skip
        self._packers = [
            ShardPacker(source, self._packing, number, f"{number:032x}.flat")
            for number in range(self._packing.num_shards)
        ]
        index = {**self._kept, "record.npy": _sized(np.int64, (manifest.count, 3)),
                 "crc32.npy": _sized(np.uint32, (manifest.count,))}  # fmt: skip
        self._source_lengths = wanted.fields is not None
        if self._source_lengths:
            index[SOURCE_LENGTHS] = _sized(np.int64, (manifest.count,))
        self._manifest = replace(
            manifest, schema=Schema(specs), shards=tuple(self._shard(packer) for packer in self._packers),
            store="flat", index=index,
        )  # fmt: skip
        self.sizes = {f"shards/{packer.file}": packer.num_bytes for packer in self._packers}
        self.sizes.update({self._inside(name): item.bytes for name, item in index.items()})
        self.sizes.update(manifest_sizes(self._manifest))

    def _check_index(self, names: list[str], note: Callable[[int, int], None]) -> None:
        """The plan is made from these files."""
        listed, done = self._source.manifest.index, 0
        for name in names:
            if name not in listed:
                raise FormatError(f"{self._directory / MANIFEST_NAME}: does not list {name}; build again")
        total = sum(listed[name].bytes for name in names)
        for name in names:
            for block in checked_blocks(self._directory / name, listed[name].bytes, listed[name].xxh3):
                note(done := done + len(block), total)

    @property
    def copied_bytes(self) -> int:
        return sum(packer.num_bytes for packer in self._packers) + sum(item.bytes for item in self._kept.values())

    def jobs(self, folder: Path) -> list[Job]:
        packs: list[Job] = [functools.partial(packer.pack, folder / "shards") for packer in self._packers]
        copies: list[Job] = [
            functools.partial(copy_file, self._directory / name, folder / self._inside(name), item.bytes, item.xxh3)
            for name, item in self._kept.items()
        ]
        return packs + copies

    def finish(self, folder: Path) -> Manifest:
        """Called when all jobs are done: names the shards, writes what the records' new places are."""
        packing, count = self._packing, self._manifest.count
        for packer in self._packers:
            os.rename(folder / "shards" / packer.file, folder / "shards" / f"{packer.checksum}.flat")
        record, crc32 = np.zeros((count, 3), np.int64), np.zeros(count, np.uint32)
        record[self._rows] = packing.record[packing.sample]
        crc32[self._rows] = packing.new_crc32[packing.sample]
        index = dict(self._manifest.index)
        arrays: dict[str, np.ndarray] = {"record.npy": record, "crc32.npy": crc32}
        if self._source_lengths:
            arrays[SOURCE_LENGTHS] = np.ascontiguousarray(self._source.index.record[:, 2])
        for name, array in arrays.items():
            index[name] = _save(folder / self._inside(name), array)
        return replace(self._manifest, shards=tuple(self._shard(packer) for packer in self._packers), index=index)

    def _inside(self, name: str) -> str:
        return f"{self._directory.relative_to(self._source.root)}/{name}"

    @staticmethod
    def _shard(packer: ShardPacker) -> Shard:
        checksum = packer.checksum or _PENDING
        return Shard(f"{checksum}.flat", packer.num_bytes, packer.num_records, checksum, {})


def _shape_files(schema: Schema) -> list[str]:
    return [f"shape.{spec.name}.npy" for spec in schema.arrays if not spec.is_fixed]


def _header(dtype: Any, shape: tuple[int, ...]) -> bytes:
    """As numpy begins an .npy file of version 1.0."""
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype).newbyteorder("<"))
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    padded = -(-(10 + len(text) + 1) // 64) * 64
    header = text.ljust(padded - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


def _sized(dtype: Any, shape: tuple[int, ...]) -> IndexFile:
    return IndexFile(len(_header(dtype, shape)) + int(np.prod(shape)) * np.dtype(dtype).itemsize, _PENDING)


def _save(path: Path, array: np.ndarray) -> IndexFile:
    header, values = _header(array.dtype, array.shape), memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    digest = new_checksum()
    digest.update(header)
    digest.update(values)
    write_over(path, header, values)
    return IndexFile(len(header) + len(values), digest.hexdigest())
