"""The unit of work: one task -> one finished shard and a receipt."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from precompile.format.manifest import Shard
from precompile.format.schema import Schema
from precompile.pipeline.checksum import file_checksum
from precompile.pipeline.compile_input import Encoded, Failure, Heartbeat, InputCompiler, Job, Same
from precompile.pipeline.compile_sample import SampleCompiler
from precompile.pipeline.earlier import open_earlier
from precompile.pipeline.journal import Receipt
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.plan import WorkList
from precompile.pipeline.quarantine import Quarantined
from precompile.pipeline.reuse import NONE, Known, open_copies
from precompile.pipeline.shard_rows import ShardRows
from precompile.pipeline.storage import storage_errors
from precompile.pipeline.versions import library_versions
from precompile.pipeline.writers import ShardWriter, open_writer, suffix

__all__ = ["Failure", "Heartbeat", "Job", "ShardCompiler", "Task", "Unfinished"]


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


class ShardCompiler:
    """Compiles tasks of one job, one after another, in one process."""

    def __init__(self, job: Job, compiler: SampleCompiler, heartbeat: Heartbeat) -> None:
        self._job = job
        self._dirs = BuildDirs(job.root)
        self._schema = Schema(compiler.fields)
        self._heartbeat = heartbeat
        self._work = WorkList.open(self._dirs.plan, job.count)
        self._copies = open_copies(self._dirs.plan, job.count)
        self._earlier = None if job.earlier is None else open_earlier(job.root, job.earlier, check=False)
        self._input = InputCompiler(job, compiler, heartbeat, self._work, Known.open(self._dirs.plan))
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
        failure = shard.task.known.get(sample)
        if failure is not None:
            shard.failed.append((sample, self._input.failed(sample, failure)))
            return
        self._heartbeat.begin(sample)
        if not self._copy(shard, sample):
            is_damaged = self._copies[sample] != NONE  # what cannot be copied is no use as it lies either
            outcome = self._input(sample, use_known=not is_damaged)
            if isinstance(outcome, Quarantined):
                shard.failed.append((sample, outcome))
            elif isinstance(outcome, Same):
                shard.rows.same.append((sample, outcome.row))
            else:
                shard.rows.add(sample, outcome)
                shard.writer.append(outcome.record)
        self._heartbeat.end()

    def _copy(self, shard: Unfinished, sample: int) -> bool:
        """Take a record out of a shard that is mostly dead; False if there is none, or it is damaged."""
        row = int(self._copies[sample])
        data = None if row < 0 or self._earlier is None else self._earlier.read(row)
        if data is None or self._earlier is None:
            return False
        shapes, columns = self._earlier.facts(row)
        shard.rows.add(sample, Encoded(data, shapes, columns, int(self._earlier.xxh3[row])))
        shard.rows.copied += 1
        shard.writer.append(data)
        return True

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
        outcome = self._input(sample)
        self._heartbeat.end()
        return (len(outcome.record), int(self._work.stat[sample, 0])) if isinstance(outcome, Encoded) else None

    def _publish(self, path: Path, records: int) -> Shard:
        checksum = file_checksum(path)
        file = f"{checksum}.{suffix(self._job.recipe.store)}"
        num_bytes = path.stat().st_size
        path.replace(self._dirs.shards / file)  # the commit makes all renames durable at once
        return Shard(file, num_bytes, records, checksum, self._versions)
