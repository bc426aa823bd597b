"""One input of a plan -> its record, or that it is known already, or why it is left out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import xxhash

from precompile.errors import ContentError, FormatError, StorageError
from precompile.format import record
from precompile.format.record import Shape
from precompile.format.schema import Schema
from precompile.pipeline.compile_sample import SampleCompiler
from precompile.pipeline.plan import MISSING, WorkList
from precompile.pipeline.quarantine import Quarantined
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.reuse import Known
from precompile.pipeline.sample import Scalar, Source
from precompile.pipeline.storage import read_file


@dataclass(frozen=True, slots=True)
class Job:
    """What every task of one build shares; picklable."""

    root: Path
    """Where the build works; see BuildDirs."""
    recipe: Recipe
    media: str
    count: int
    """Inputs in the plan."""
    source: Source | None
    """Only for inputs that are not files; files are read by the plan's paths."""
    earlier: int | None = None
    """The generation that records are taken over from."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that is known to kill or hang a worker, from earlier attempts."""

    error: str
    message: str
    attempts: int
    xxh3: str = ""
    """XXH3-64 of the file's bytes, 16 hex digits; empty when they had not been read."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One sample as it is stored."""

    record: np.ndarray
    """uint8 (bytes,)"""
    shapes: Mapping[str, Shape]
    columns: Mapping[str, Scalar]
    xxh3: int
    """XXH3-64 of the input's bytes."""


@dataclass(frozen=True, slots=True)
class Same:
    """The bytes of an input are those of `row` in the generation before; see `Known.row`."""

    row: int


class Heartbeat(Protocol):
    """Told before each sample, so that the sample that kills or hangs a worker is known by name."""

    def begin(self, sample: int) -> None: ...

    def loaded(self, xxh3: int) -> None:
        """The file of the sample is read; xxh3: XXH3-64 of its bytes."""
        ...

    def end(self) -> None: ...


class InputCompiler:
    """Reads, checks, hashes, decodes and encodes inputs, one after another, in one process."""

    def __init__(self, job: Job, compiler: SampleCompiler, heartbeat: Heartbeat, work: WorkList, known: Known) -> None:
        self._job = job
        self._compiler = compiler
        self._schema = Schema(compiler.fields)
        self._heartbeat = heartbeat
        self._work = work
        self._known = known

    def __call__(self, sample: int, *, use_known: bool = True) -> Encoded | Same | Quarantined:
        """`use_known`: a content that the generation before has is not decoded.

        Raises StorageError when the input cannot be read, or is not the one that was listed.
        """
        checksum = ""
        try:
            data = self._read(sample)
            content = xxhash.xxh3_64_intdigest(data)
            self._heartbeat.loaded(content)
            checksum = f"{content:016x}"
            row = self._known.find(content, len(data)) if use_known else None
            if row is not None:
                return Same(row)
            compiled = self._compiler(data)
            shapes = {name: array.shape for name, array in compiled.arrays.items()}
            return Encoded(record.encode(self._schema, compiled.arrays), shapes, compiled.columns, content)
        except StorageError:
            raise
        except Exception as error:
            return self._quarantined(sample, _stage(error), type(error).__name__, _one_line(error), checksum, 1)

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

    def failed(self, sample: int, failure: Failure) -> Quarantined:
        """The row of an input that is not tried again, not even read: reading may be what hung."""
        stage = "decode" if failure.xxh3 else "read"
        return self._quarantined(sample, stage, failure.error, failure.message, failure.xxh3, failure.attempts)

    def _quarantined(
        self, sample: int, stage: str, error: str, message: str, checksum: str, attempts: int
    ) -> Quarantined:
        key, path = self._work.keys[sample], self._work.paths[sample]
        size = int(self._work.stat[sample, 0])
        return Quarantined(key, path, "", stage, error, message, size, checksum, attempts)


def _stage(error: Exception) -> str:
    if isinstance(error, ContentError):
        return error.stage
    return "store" if isinstance(error, FormatError) else "decode"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 500 else text[:497] + "..."
