"""The unit of work: one task -> one finished shard and a receipt."""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import xxhash

from precompile.errors import ContentError, FormatError, StorageError
from precompile.format import record
from precompile.format.manifest import Shard
from precompile.format.schema import Schema
from precompile.pipeline.checksum import file_checksum
from precompile.pipeline.compile_sample import CompiledSample, SampleCompiler
from precompile.pipeline.journal import Receipt
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.plan import MISSING, WorkList
from precompile.pipeline.quarantine import Quarantined
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import Source
from precompile.pipeline.shard_rows import ShardRows
from precompile.pipeline.storage import read_file, storage_errors
from precompile.pipeline.writers import ShardWriter, open_writer, suffix


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


@dataclass(frozen=True, slots=True)
class Task:
    """Compile inputs `order[start:stop]` of the plan as shard number `number`."""

    number: int
    start: int
    stop: int
    known: Mapping[int, Failure]
    """Inputs not to be touched, since they killed or hung a worker before."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A shard whose records are written, but not yet durable."""

    task: Task
    path: Path
    writer: ShardWriter
    rows: ShardRows
    failed: list[tuple[int, Quarantined]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)


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

    def compile(self, task: Task) -> Unfinished:
        """Compile the inputs of a task and write their records. Raises StorageError; the file is then removed."""
        path = self._dirs.unfinished / f"{task.number:06d}.{os.getpid()}"
        with storage_errors(f"cannot write {path}"):
            shard = Unfinished(task, path, open_writer(self._job.recipe.store, path), ShardRows(self._schema))
            try:
                for sample in self._work.order[task.start : task.stop].tolist():
                    self._add(shard, sample)
            except BaseException:
                shard.writer.abort()
                raise
        return shard

    def _add(self, shard: Unfinished, sample: int) -> None:
        known = shard.task.known.get(sample)
        if known is not None:
            shard.failed.append((sample, self._known_failure(sample, known)))
            return
        self._heartbeat.begin(sample)
        outcome = self._compile(sample)
        if isinstance(outcome, Quarantined):
            shard.failed.append((sample, outcome))
        else:
            compiled, stored, content = outcome
            shard.rows.add(sample, compiled, stored, content)
            shard.writer.append(stored)
        self._heartbeat.end()

    def finish(self, shard: Unfinished) -> Receipt:
        """Make a shard durable, name it by its checksum, and write its receipt. May run beside another `compile`."""
        with storage_errors(f"cannot write {shard.path}"):
            try:
                published, offset = None, np.empty(0, np.int64)
                if shard.rows.samples:
                    offset = shard.writer.commit()
                    published = self._publish(shard.path, len(shard.rows.samples))
                else:
                    shard.writer.abort()
            except BaseException:
                shard.writer.abort()
                raise
            seconds = time.monotonic() - shard.began
            receipt = shard.rows.receipt(shard.task.number, published, offset, shard.failed, seconds)
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
            raise ContentError("no such file, or not a file", stage="read")
        if path:
            data = read_file(Path(path))
            self._check_at_rest(sample, path)
            return data
        assert self._job.source is not None
        raw = self._job.source[int(self._work.source_index[sample])]
        content = raw.parts[self._job.media]
        assert isinstance(content, bytes)
        return content

    def _check_at_rest(self, sample: int, path: str) -> None:
        """What was planned must be what was read, or the result would be a mix that no source ever held."""
        found = os.stat(path)
        size, mtime_ns = self._work.stat[sample, :2].tolist()
        if (found.st_size, found.st_mtime_ns) != (size, mtime_ns):
            raise StorageError(f"{path}: changed since it was listed; build again on a source at rest")

    def _publish(self, path: Path, records: int) -> Shard:
        checksum = file_checksum(path)
        file = f"{checksum}.{suffix(self._job.recipe.store)}"
        num_bytes = path.stat().st_size
        path.replace(self._dirs.shards / file)  # the commit makes all renames durable at once
        return Shard(file, num_bytes, records, checksum, self._versions)

    def _known_failure(self, sample: int, failure: Failure) -> Quarantined:
        # Not read again, not even for its checksum: reading may be what hung.
        return self._quarantined(sample, "decode", failure.error, failure.message, "", failure.attempts)

    def _quarantined(
        self, sample: int, stage: str, error: str, message: str, checksum: str, attempts: int
    ) -> Quarantined:
        key, path = self._work.keys[sample], self._work.paths[sample]
        size = int(self._work.stat[sample, 0])
        return Quarantined(key, path, "", stage, error, message, size, checksum, attempts)


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
