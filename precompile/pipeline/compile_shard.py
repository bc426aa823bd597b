"""The unit of work: one task -> one finished shard and a receipt."""

from __future__ import annotations

import importlib.metadata
import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import xxhash

from precompile.errors import ContentError, FormatError, StorageError
from precompile.format import record
from precompile.format.index import Column
from precompile.format.manifest import Shard
from precompile.format.schema import Schema
from precompile.format.text import TextColumn
from precompile.pipeline.checksum import file_checksum
from precompile.pipeline.compile_sample import CompiledSample, SampleCompiler
from precompile.pipeline.journal import Receipt
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.plan import MISSING, WorkList
from precompile.pipeline.quarantine import Quarantined
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import Scalar, Source
from precompile.pipeline.storage import read_file, storage_error
from precompile.pipeline.writers import open_writer, suffix


@dataclass(frozen=True, slots=True)
class Job:
    """What every task of one build shares; picklable."""

    root: Path
    recipe: Recipe
    media: str
    count: int
    """Inputs in the plan."""
    source: Source | None
    """Only for inputs that are not files; files are read by the plan's paths."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that is known to kill or hang a worker, from earlier attempts."""

    error: str
    message: str
    attempts: int


class Heartbeat(Protocol):
    """Told before each sample, so that the sample that kills or hangs a worker is known by name."""

    def begin(self, sample: int) -> None: ...

    def end(self) -> None: ...


class ShardCompiler:
    """Compiles tasks of one job, one after another, in one process."""

    def __init__(self, job: Job, compiler: SampleCompiler, heartbeat: Heartbeat) -> None:
        self._job = job
        self._dirs = BuildDirs(job.root)
        self._compiler = compiler
        self._schema = Schema(compiler.fields)
        self._heartbeat = heartbeat
        self._work = WorkList.open(self._dirs.plan, job.count)
        self._versions = library_versions(job.media)

    def run(self, task: int, start: int, stop: int, known: Mapping[int, Failure]) -> Receipt:
        """Compile inputs `order[start:stop]`. The shard is durable and renamed before the receipt exists.

        known: inputs not to be touched, since they killed or hung a worker before.
        Raises StorageError, after removing the unfinished shard.
        """
        began = time.monotonic()
        path = self._dirs.unfinished / f"{task:06d}.{os.getpid()}"
        rows = _Rows(self._schema)
        failed: list[tuple[int, Quarantined]] = []
        writer = open_writer(self._job.recipe.store, path)
        try:
            for sample in self._work.order[start:stop].tolist():
                if sample in known:
                    failed.append((sample, self._known_failure(sample, known[sample])))
                    continue
                self._heartbeat.begin(sample)
                outcome = self._compile(sample)
                if isinstance(outcome, Quarantined):
                    failed.append((sample, outcome))
                else:
                    compiled, stored, content = outcome
                    rows.add(sample, compiled, stored, content)
                    writer.append(stored)
                self._heartbeat.end()
            shard, offset = None, np.empty(0, np.int64)
            if rows.samples:
                offset = writer.commit()
                shard = self._publish(path, len(rows.samples))
            else:
                writer.abort()
        except BaseException as error:
            writer.abort()
            if isinstance(error, OSError) and not isinstance(error, StorageError):
                raise storage_error(error, f"cannot write {path}") from None
            raise
        receipt = rows.receipt(task, shard, offset, failed, time.monotonic() - began)
        receipt.save(self._dirs.receipts)
        return receipt

    def measure(self, sample: int) -> tuple[int, int] | None:
        """Stored bytes and input bytes of one input; None when it cannot be compiled."""
        self._heartbeat.begin(sample)
        outcome = self._compile(sample)
        self._heartbeat.end()
        if isinstance(outcome, Quarantined):
            return None
        return len(outcome[1]), int(self._work.stat[sample, 0])

    def _compile(self, sample: int) -> tuple[CompiledSample, np.ndarray, int] | Quarantined:
        checksum = ""
        try:
            data = self._read(sample)
            content = xxhash.xxh3_64_intdigest(data)
            checksum = f"{content:016x}"
            compiled = self._compiler(data)
            return compiled, record.encode(self._schema, compiled.arrays), content
        except StorageError:
            raise
        except Exception as error:
            stage = (
                error.stage
                if isinstance(error, ContentError)
                else "store"
                if isinstance(error, FormatError)
                else "decode"
            )
            return self._quarantined(sample, stage, type(error).__name__, _one_line(error), checksum, 1)

    def _read(self, sample: int) -> bytes:
        path = self._work.paths[sample]
        if self._work.stat[sample, 0] == MISSING:
            raise ContentError("no such file", stage="read")
        if path:
            return read_file(Path(path))
        assert self._job.source is not None
        raw = self._job.source[int(self._work.source_index[sample])]
        data = raw.parts[self._job.media]
        assert isinstance(data, bytes)
        return data

    def _publish(self, path: Path, records: int) -> Shard:
        checksum = file_checksum(path)
        file = f"{checksum}.{suffix(self._job.recipe.store)}"
        num_bytes = path.stat().st_size
        path.replace(self._dirs.shards / file)  # the commit makes all renames durable at once
        return Shard(file, num_bytes, records, checksum, self._versions)

    def _known_failure(self, sample: int, failure: Failure) -> Quarantined:
        try:
            checksum = f"{xxhash.xxh3_64_intdigest(self._read(sample)):016x}"
        except ContentError:
            checksum = ""
        return self._quarantined(sample, "decode", failure.error, failure.message, checksum, failure.attempts)

    def _quarantined(
        self, sample: int, stage: str, error: str, message: str, checksum: str, attempts: int
    ) -> Quarantined:
        key, path = self._work.keys[sample], self._work.paths[sample]
        size = int(self._work.stat[sample, 0])
        return Quarantined(key, path, "", stage, error, message, size, checksum, attempts)


class _Rows:
    """Collects what a receipt says of each record."""

    def __init__(self, schema: Schema) -> None:
        self.samples: list[int] = []
        self._lengths: list[int] = []
        self._crcs: list[int] = []
        self._xxh3: list[int] = []
        self._axes = {spec.name: len(spec.shape) for spec in schema.arrays}
        self._shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in self._axes}
        self._columns: dict[str, list[Scalar]] = {}

    def add(self, sample: int, compiled: CompiledSample, stored: np.ndarray, content: int) -> None:
        self.samples.append(sample)
        self._lengths.append(len(stored))
        self._crcs.append(zlib.crc32(stored.data))
        self._xxh3.append(content)
        for name, array in compiled.arrays.items():
            self._shapes[name].append(array.shape)
        for name, value in compiled.columns.items():
            self._columns.setdefault(name, []).append(value)

    def receipt(
        self, task: int, shard: Shard | None, offset: np.ndarray, failed: list[tuple[int, Quarantined]], seconds: float
    ) -> Receipt:
        count = len(self.samples)
        return Receipt(
            task=task,
            shard=shard,
            samples=np.array(self.samples, np.int64),
            offset=offset,
            length=np.array(self._lengths, np.int64),
            crc32=np.array(self._crcs, np.uint32),
            xxh3=np.array(self._xxh3, np.uint64),
            shapes={
                name: np.array(shapes, np.int64).reshape(count, self._axes[name])
                for name, shapes in self._shapes.items()
            },
            columns={name: _column(values) for name, values in self._columns.items()},
            quarantined=tuple(failed),
            seconds=seconds,
        )


def _column(values: list[Scalar]) -> Column:
    if isinstance(values[0], str):
        return TextColumn.of(map(str, values))
    return np.array(values, np.float64 if isinstance(values[0], float) else np.int64)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 500 else text[:497] + "..."


def library_versions(media: str) -> dict[str, str]:
    """Versions of the libraries whose arithmetic is in the stored values."""
    names = {"image": ("pillow", "opencv-python-headless", "torch"), "audio": ("soundfile", "torchaudio", "torch")}[
        media
    ]
    found = {}
    for name in ("numpy", *names):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
