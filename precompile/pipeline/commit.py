"""Receipts -> a new generation, atomically."""

from __future__ import annotations

import datetime
import os
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from precompile.errors import BuildFailedError, DatasetNotFoundError, FormatError
from precompile.format.generation import generation_dir, list_generations, shard_path
from precompile.format.index import Column, save_column
from precompile.format.manifest import MANIFEST_NAME, IndexFile, Manifest, Shard, Split, read_manifest
from precompile.format.schema import TEXT, FieldSpec, Schema
from precompile.format.shards import ShardMap
from precompile.format.text import TextColumn
from precompile.pipeline.checksum import file_checksum
from precompile.pipeline.fingerprint import fingerprint
from precompile.pipeline.journal import Receipt
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.plan import Plan
from precompile.pipeline.quarantine import QUARANTINE_NAME, Quarantined, write_quarantine
from precompile.pipeline.storage import sync_dir, sync_files, write_atomically

_READ_BACK = 64
_UNITS = {"duration_seconds": "s", "sample_rate": "Hz"}


class GenerationWriter:
    """Puts the receipts of one plan together, in source order. Raises BuildFailedError when an input is missing."""

    def __init__(self, plan: Plan, receipts: Sequence[Receipt], fields: tuple[FieldSpec, ...]) -> None:
        self._plan = plan
        used = [receipt for receipt in receipts if receipt.shard is not None]
        self.shards = tuple(receipt.shard for receipt in used if receipt.shard is not None)
        self.samples = np.concatenate([receipt.samples for receipt in used] or [np.empty(0, np.int64)])
        self._sort = np.argsort(self.samples, kind="stable")
        self.samples = self.samples[self._sort]
        self._used = used
        self.quarantined = self._quarantined(receipts)
        self._check_counts()
        self.splits = self._splits()
        self.columns = self._columns()
        self.arrays = self._arrays(fields)
        self.schema = self._schema(fields)

    @property
    def count(self) -> int:
        return len(self.samples)

    def _join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        joined: np.ndarray = np.concatenate(parts)[self._sort]
        return joined

    def _quarantined(self, receipts: Sequence[Receipt]) -> tuple[Quarantined, ...]:
        rows = sorted((row for receipt in receipts for row in receipt.quarantined), key=lambda row: row[0])
        ends = [split.start + split.count for split in self._plan.splits]
        names = [split.name for split in self._plan.splits]
        self._failed = np.array([sample for sample, _ in rows], np.int64)
        return tuple(replace(row, split=names[int(np.searchsorted(ends, s, side="right"))]) for s, row in rows)

    def _check_counts(self) -> None:
        everything = np.sort(np.concatenate([self.samples, self._failed]))
        if not np.array_equal(everything, np.arange(len(self._plan))):
            raise BuildFailedError(
                f"planned {len(self._plan)} inputs, but {len(self.samples)} compiled and {len(self._failed)} "
                "quarantined do not add up; nothing was committed. Run with --rebuild"
            )

    def _splits(self) -> tuple[Split, ...]:
        starts = np.searchsorted(self.samples, [s.start for s in self._plan.splits] + [len(self._plan)]).tolist()
        return tuple(Split(s.name, starts[i], starts[i + 1] - starts[i]) for i, s in enumerate(self._plan.splits))

    def _columns(self) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for name, column in self._plan.columns.items():
            columns[name] = column.take(self.samples) if isinstance(column, TextColumn) else column[self.samples]
        for name in self._used[0].columns if self._used else ():
            parts = [receipt.columns[name] for receipt in self._used]
            if isinstance(parts[0], TextColumn):
                columns[name] = TextColumn.of(text for part in parts for text in part).take(self._sort)
            else:
                columns[name] = self._join([part for part in parts if isinstance(part, np.ndarray)])
        return columns

    def _arrays(self, fields: tuple[FieldSpec, ...]) -> dict[str, np.ndarray]:
        number = {file: position for position, file in enumerate(dict.fromkeys(s.file for s in self.shards))}
        places = [
            np.stack([np.full(len(r.offset), number[r.shard.file]), r.offset, r.length], axis=1)
            for r in self._used
            if r.shard is not None
        ]
        arrays = {
            "record": self._join(places),
            "crc32": self._join([receipt.crc32 for receipt in self._used]),
            "source.stat": self._plan.stat[self.samples],
            "source.xxh3": self._join([receipt.xxh3 for receipt in self._used]),
        }
        for spec in fields:
            arrays[f"shape.{spec.name}"] = self._join([receipt.shapes[spec.name] for receipt in self._used])
        self.shards = tuple({shard.file: shard for shard in self.shards}.values())
        return arrays

    def _schema(self, fields: tuple[FieldSpec, ...]) -> Schema:
        """The declared fields, with every size that all samples share filled in."""
        specs = []
        for spec in fields:
            shapes = self.arrays[f"shape.{spec.name}"]
            same = (shapes == shapes[0]).all(axis=0)
            shape = tuple(int(size) if fixed else None for size, fixed in zip(shapes[0], same))
            specs.append(replace(spec, shape=shape))
            if same.all():
                del self.arrays[f"shape.{spec.name}"]
        for name, column in self.columns.items():
            dtype = TEXT if isinstance(column, TextColumn) else column.dtype.name
            specs.append(FieldSpec(name, dtype, (), unit=_UNITS.get(name, "")))
        return Schema(tuple(specs))

    def fingerprint(self, classes: tuple[str, ...] | None) -> str:
        keys = self._plan.keys.take(self.samples)
        return fingerprint(self.schema, classes, self.splits, keys=keys, arrays=self.arrays, columns=self.columns)

    def write_index(self, directory: Path) -> dict[str, IndexFile]:
        for name, array in self.arrays.items():
            save_column(directory, name, array)
        for name, column in self.columns.items():
            save_column(directory, f"column.{name}", column)
        save_column(directory, "key", self._plan.keys.take(self.samples))
        write_quarantine(directory / QUARANTINE_NAME, self.quarantined)
        return {path.name: IndexFile(path.stat().st_size, file_checksum(path)) for path in sorted(directory.iterdir())}


def commit_generation(
    dirs: BuildDirs, writer: GenerationWriter, facts: Mapping[str, Any], classes: tuple[str, ...] | None
) -> Manifest:
    """Write a generation beside the others and make it the current one by one rename. Any crash leaves the old one."""
    sync_dir(dirs.shards)
    _read_back(dirs.root, writer)
    generation = _sweep_uncommitted(dirs) + 1
    unfinished = dirs.generations / f".{generation:06d}.{os.getpid()}.tmp"
    unfinished.mkdir()
    manifest = Manifest(
        generation=generation,
        schema=writer.schema,
        count=writer.count,
        classes=classes,
        splits=writer.splits,
        shards=writer.shards,
        index=writer.write_index(unfinished),
        fingerprint=writer.fingerprint(classes),
        quarantined=len(writer.quarantined),
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **facts,
    )
    text = manifest.to_json().encode()
    (unfinished / MANIFEST_NAME).write_bytes(text)
    sync_files(unfinished)
    unfinished.rename(generation_dir(dirs.root, generation))
    sync_dir(dirs.generations)
    write_atomically(dirs.root / MANIFEST_NAME, text)
    return manifest


def _sweep_uncommitted(dirs: BuildDirs) -> int:
    """Remove what builds left that ended before their commit; returns the current generation, 0 when there is none."""
    current = read_manifest(dirs.root / MANIFEST_NAME).generation if (dirs.root / MANIFEST_NAME).exists() else 0
    for path in dirs.generations.iterdir():
        if path.match(".[0-9]*.tmp") or (path.name.isdecimal() and int(path.name) > current):
            shutil.rmtree(path)
    return current


def _read_back(root: Path, writer: GenerationWriter) -> None:
    """Read some records as training will, before anybody can see the generation."""
    files = [shard_path(root, shard.file) for shard in writer.shards]
    shards = ShardMap(files, [shard.bytes for shard in writer.shards])
    for sample in np.linspace(0, writer.count - 1, min(_READ_BACK, writer.count)).astype(np.int64).tolist():
        shard, offset, length = writer.arrays["record"][sample].tolist()
        if zlib.crc32(shards.view(int(shards.starts[shard]) + offset, length).data) != writer.arrays["crc32"][sample]:
            raise FormatError(
                f"{files[shard]}: a record read back differs from what was written; nothing was committed"
            )


def prune(dirs: BuildDirs, *, keep: int) -> list[int]:
    """Remove all but the newest `keep` generations and the shards that none of them uses; returns what was removed."""
    generations = list_generations(dirs.root)
    current = read_manifest(dirs.root / MANIFEST_NAME).generation
    kept = {current, *generations[-keep:]}
    removed = [generation for generation in generations if generation not in kept]
    for generation in removed:
        shutil.rmtree(generation_dir(dirs.root, generation))
    try:
        used = {shard.file for generation in kept for shard in _shards(dirs.root, generation)}
    except (FormatError, DatasetNotFoundError):
        return removed  # a damaged old generation does not say which shards are its own: all stay
    for path in dirs.shards.iterdir():
        if path.name not in used and path.suffix in (".lmdb", ".flat"):
            path.unlink()
    return removed


def _shards(root: Path, generation: int) -> tuple[Shard, ...]:
    return read_manifest(generation_dir(root, generation) / MANIFEST_NAME).shards
