"""Samples -> shard tasks. A plan depends on the source and the recipe alone, never on how many workers there are."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from precompile.errors import RecipeError, SourceError
from precompile.format.index import Column, open_array, open_text, save_column
from precompile.format.manifest import Split
from precompile.format.text import TextColumn
from precompile.pipeline.checksum import values_checksum
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import RawSample, Scalar, Source
from precompile.pipeline.storage import storage_error, sync_files

MIN_SHARD_BYTES, MAX_SHARD_BYTES, SHARDS = 4 << 20, 4 << 30, 64
STAT_FIELDS = ("size", "mtime_ns", "ctime_ns", "inode")
MISSING = -1
"""The size in the `stat` of an input that does not exist."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All inputs in source order (split after split), and which task compiles which.

    Held as arrays: about 100 bytes an input. Saved in `build/plan`, so that workers map it.
    """

    keys: TextColumn
    paths: TextColumn
    """Where each input lies; empty text for one that is not a file."""
    source_index: np.ndarray
    """int64 (n,): the input's place in the source."""
    stat: np.ndarray
    """int64 (n, 4): STAT_FIELDS of each input."""
    splits: tuple[Split, ...]
    classes: tuple[str, ...] | None
    columns: Mapping[str, Column]
    """`label` and whatever else the source knows, one value an input."""
    order: np.ndarray
    """int64 (n,): inputs in the order in which they are placed in shards."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def digest(self) -> str:
        """Identifies what was planned: names, sizes, times, labels and order."""
        parts = [self.keys, self.stat[:, :2].copy(), self.order, repr(self.classes), repr(self.splits)]
        return values_checksum(
            *parts, *(part for name, column in sorted(self.columns.items()) for part in (name, column))
        )

    def save(self, directory: Path) -> None:
        for name, column in self._arrays().items():
            save_column(directory, name, column)
        sync_files(directory)

    def _arrays(self) -> dict[str, Column]:
        return {
            "key": self.keys,
            "path": self.paths,
            "source_index": self.source_index,
            "stat": self.stat,
            "order": self.order,
        }


@dataclass(frozen=True, slots=True)
class WorkList:
    """What a worker needs of a plan, mapped from `build/plan`."""

    keys: TextColumn
    paths: TextColumn
    source_index: np.ndarray
    stat: np.ndarray
    order: np.ndarray

    @classmethod
    def open(cls, directory: Path, count: int) -> WorkList:
        return cls(
            keys=open_text(directory, "key", count),
            paths=open_text(directory, "path", count),
            source_index=open_array(directory / "source_index.npy", "int64", (count,)),
            stat=open_array(directory / "stat.npy", "int64", (count, len(STAT_FIELDS))),
            order=open_array(directory / "order.npy", "int64", (count,)),
        )


def make_plan(source: Source, recipe: Recipe) -> Plan:
    """List a source. Raises SourceError when it is empty or contradicts itself, StorageError when it cannot be read."""
    count = len(source)
    if count == 0:
        raise SourceError("the source has no samples; nothing to compile")
    samples = _Samples(source, recipe)
    for index in range(count):
        samples.add(source[index])
    names = sorted(set(samples.splits))
    number = {name: position for position, name in enumerate(names)}
    split = np.fromiter((number[name] for name in samples.splits), np.int64, count)
    by_split = np.argsort(split, kind="stable")
    starts = np.searchsorted(split[by_split], np.arange(len(names) + 1)).tolist()
    keys = TextColumn.of(samples.keys).take(by_split)
    _check_unique(keys)
    columns, classes = samples.finish(source, recipe)
    return Plan(
        keys=keys,
        paths=TextColumn.of(samples.paths).take(by_split),
        source_index=by_split,
        stat=np.array(samples.stats, np.int64).reshape(count, len(STAT_FIELDS))[by_split],
        splits=tuple(Split(name, starts[i], starts[i + 1] - starts[i]) for i, name in enumerate(names)),
        classes=classes,
        columns={name: c.take(by_split) if isinstance(c, TextColumn) else c[by_split] for name, c in columns.items()},
        order=_placement(keys, recipe),
    )


def cut_tasks(plan: Plan, total_bytes: int, shard_bytes: int | None) -> np.ndarray:
    """int64 (tasks + 1,): task t compiles `plan.order[bounds[t]:bounds[t + 1]]`; equal numbers of inputs each."""
    if shard_bytes is None:
        shard_bytes = min(max(total_bytes // SHARDS, MIN_SHARD_BYTES), MAX_SHARD_BYTES)
    tasks = min(max(1, -(-total_bytes // shard_bytes)), len(plan))
    return np.linspace(0, len(plan), tasks + 1).round().astype(np.int64)


def _placement(keys: TextColumn, recipe: Recipe) -> np.ndarray:
    if recipe.order == "source":
        return np.arange(len(keys), dtype=np.int64)
    hashes = (xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"), recipe.seed) for key in keys)
    return np.argsort(np.fromiter(hashes, np.uint64, len(keys)), kind="stable").astype(np.int64)


def _check_unique(keys: TextColumn) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise SourceError(f"two inputs have the key {key!r}; keys must be unique")
        seen.add(key)


class _Samples:
    """Collects the columns of a plan, sample by sample."""

    def __init__(self, source: Source, recipe: Recipe) -> None:
        self.media = source.media
        self.keys: list[str] = []
        self.splits: list[str] = []
        self.paths: list[str] = []
        self.stats: list[tuple[int, int, int, int]] = []
        self.columns: dict[str, list[Scalar]] = {}
        self.missing_is_planned = recipe.missing == "quarantine"

    def add(self, sample: RawSample) -> None:
        media = sample.parts.get(self.media)
        if not isinstance(media, Path | bytes):
            raise SourceError(
                f"{sample.key}: expected a path or bytes as part {self.media!r}, got {type(media).__name__}"
            )
        self.keys.append(sample.key)
        self.splits.append(sample.split)
        self.paths.append(str(media) if isinstance(media, Path) else "")
        self.stats.append(self._stat(media))
        position = len(self.keys) - 1
        for name, value in sample.parts.items():
            if name == self.media:
                continue
            if isinstance(value, Path | bytes):
                raise SourceError(f"{sample.key}: part {name!r} must be a number or text, got {type(value).__name__}")
            values = self.columns.setdefault(name, [])
            if len(values) == position:
                values.append(value)
        for name, values in self.columns.items():
            if len(values) != position + 1:
                raise SourceError(f"{sample.key}: every sample must have the part {name!r}")

    def _stat(self, media: Path | bytes) -> tuple[int, int, int, int]:
        if isinstance(media, bytes):
            return len(media), 0, 0, 0
        try:
            found = os.stat(media)
        except (FileNotFoundError, NotADirectoryError):
            if self.missing_is_planned:
                return MISSING, 0, 0, 0
            raise SourceError(f"{media}: no such file") from None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG and self.missing_is_planned:
                return MISSING, 0, 0, 0
            raise storage_error(error, f"cannot read {media}") from None
        if not stat.S_ISREG(found.st_mode) and self.missing_is_planned:
            return MISSING, 0, 0, 0
        if not stat.S_ISREG(found.st_mode):
            raise SourceError(f"{media}: expected a file, found something else; take it out of the source")
        return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino

    def finish(self, source: Source, recipe: Recipe) -> tuple[dict[str, Column], tuple[str, ...] | None]:
        columns = {name: _as_column(name, values) for name, values in self.columns.items() if name != "label"}
        if "label" not in self.columns:
            return columns, None
        labels = self.columns["label"]
        classes = recipe.classes or source.classes
        names = {value for value in labels if isinstance(value, str)}
        if classes is None and names:
            classes = tuple(sorted(names))
        unknown = sorted(names - set(classes or ()))
        if unknown:
            raise RecipeError(f"label {unknown[0]!r} is not among the classes {', '.join((classes or ())[:20])}")
        number = {name: position for position, name in enumerate(classes or ())}
        coded = [number[value] if isinstance(value, str) else value for value in labels]
        if not all(isinstance(value, int) for value in coded):
            raise SourceError("labels must be class names or integers")
        return {"label": np.array(coded, np.int64), **columns}, classes


def _as_column(name: str, values: list[Any]) -> Column:
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return TextColumn.of(values)
    if kinds <= {int, bool}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            raise SourceError(f"column {name!r}: integers must fit 64 bits") from None
    if kinds <= {int, float, bool}:
        return np.array(values, np.float64)
    raise SourceError(
        f"column {name!r}: values must be all numbers or all text, got {sorted(k.__name__ for k in kinds)}"
    )
