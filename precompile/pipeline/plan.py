"""Samples -> shard tasks. A plan depends on the source and the recipe alone, never on how many workers there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import xxhash

from precompile.errors import SourceError
from precompile.format.index import Column, open_array, open_text, save_column
from precompile.format.manifest import Split
from precompile.format.text import TextColumn
from precompile.pipeline.checksum import values_checksum
from precompile.pipeline.input_stat import MISSING, STAT_FIELDS
from precompile.pipeline.list_samples import list_samples
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import Listing, Source

__all__ = ["MISSING", "STAT_FIELDS", "Plan", "WorkList", "cut_tasks", "make_plan"]

MIN_SHARD_BYTES, MAX_SHARD_BYTES, SHARDS = 4 << 20, 4 << 30, 64


@dataclass(frozen=True, eq=False)
class Plan:
    """All inputs in source order, split after split. Held as arrays: about 100 bytes an input.

    What only a build needs that has something to compile is made when it is asked for.
    """

    listing: Listing
    source_index: np.ndarray
    """int64 (n,): the input's place in the source."""
    splits: tuple[Split, ...]
    seed: int | None
    """Of the placement in shards; None keeps the source's order."""

    def __len__(self) -> int:
        return len(self.listing)

    @property
    def keys(self) -> TextColumn:
        return self.listing.keys

    @property
    def stat(self) -> np.ndarray:
        """int64 (n, 4): STAT_FIELDS of each input."""
        return self.listing.stat

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.listing.classes

    @property
    def columns(self) -> Mapping[str, Column]:
        """`label` and whatever else the source knows, one value an input."""
        return self.listing.columns

    @cached_property
    def paths(self) -> TextColumn:
        """Where each input lies; empty text for one that is not a file."""
        return _below(self.listing.root, self.listing.locations)

    @cached_property
    def order(self) -> np.ndarray:
        """int64 (n,): inputs in the order in which they are placed in shards; depends on keys and seed alone."""
        if self.seed is None:
            return np.arange(len(self), dtype=np.int64)
        hashes = (xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"), self.seed) for key in self.keys)
        return np.argsort(np.fromiter(hashes, np.uint64, len(self)), kind="stable").astype(np.int64)

    @cached_property
    def digest(self) -> str:
        """Identifies what was planned: keys, STAT_FIELDS, splits, classes and columns. Placement is the recipe's."""
        parts = [self.keys, np.ascontiguousarray(self.stat), repr(self.classes), repr(self.splits)]
        for name, column in sorted(self.columns.items()):
            dtype = "text" if isinstance(column, TextColumn) else column.dtype.name
            parts += [f"{name}: {dtype}", column]
        return values_checksum(*parts)

    def save(self, directory: Path) -> None:
        """Write what a WorkList holds, all but the order, which is that of the work; durable once they are synced."""
        columns: dict[str, Column] = {
            "key": self.keys,
            "path": self.paths,
            "source_index": self.source_index,
            "stat": self.stat,
        }
        for name, column in columns.items():
            save_column(directory, name, column)


@dataclass(frozen=True, slots=True)
class WorkList:
    """What a worker needs of a plan, mapped from `build/plan`."""

    keys: TextColumn
    paths: TextColumn
    source_index: np.ndarray
    stat: np.ndarray
    order: np.ndarray
    """int64 (k,): the inputs that are work, in the order in which they are placed in shards."""

    @classmethod
    def open(cls, directory: Path, count: int) -> WorkList:
        return cls(
            keys=open_text(directory, "key", count),
            paths=open_text(directory, "path", count),
            source_index=open_array(directory / "source_index.npy", "int64", (count,)),
            stat=open_array(directory / "stat.npy", "int64", (count, len(STAT_FIELDS))),
            order=open_array(directory / "order.npy", "int64", (None,)),
        )


def make_plan(source: Source, recipe: Recipe) -> Plan:
    """List a source. Raises SourceError when it is empty or contradicts itself, StorageError when it cannot be read."""
    if len(source) == 0:
        raise SourceError("the source has no samples; nothing to compile")
    listing = _list(source, recipe)
    if "label" not in listing.columns:
        listing = replace(listing, classes=None)
    names = sorted(listing.splits)
    rank = {name: position for position, name in enumerate(names)}
    split = np.array([rank[name] for name in listing.splits], np.int32)[listing.split]
    by_split = np.arange(len(split), dtype=np.int64)
    if (split[1:] < split[:-1]).any():
        by_split = np.argsort(split, kind="stable")
        listing = _take(listing, by_split)
    ends = np.cumsum(np.bincount(split, minlength=len(names))).tolist()
    runs = zip(names, [0, *ends], ends)
    return Plan(
        listing=listing,
        source_index=by_split,
        splits=tuple(Split(name, start, end - start) for name, start, end in runs if end > start),
        seed=None if recipe.order == "source" else recipe.seed,
    )


def cut_tasks(num_inputs: int, total_bytes: int, shard_bytes: int | None) -> np.ndarray:
    """int64 (tasks + 1,): task t compiles `order[bounds[t]:bounds[t + 1]]`; equal numbers of inputs each."""
    if shard_bytes is None:
        shard_bytes = min(max(total_bytes // SHARDS, MIN_SHARD_BYTES), MAX_SHARD_BYTES)
    tasks = min(max(1, -(-total_bytes // shard_bytes)), num_inputs)
    return np.linspace(0, num_inputs, tasks + 1).round().astype(np.int64)


def _list(source: Source, recipe: Recipe) -> Listing:
    listing = getattr(source, "listing", None)
    if isinstance(listing, Listing) and recipe.classes in (None, listing.classes):
        return listing
    return list_samples(source, recipe)


def _take(listing: Listing, indices: np.ndarray) -> Listing:
    def take(column: Column) -> Column:
        return column.take(indices) if isinstance(column, TextColumn) else column[indices]

    keys = listing.keys.take(indices)
    return replace(
        listing,
        keys=keys,
        locations=keys if listing.locations is listing.keys else listing.locations.take(indices),
        stat=listing.stat[indices],
        split=listing.split[indices],
        columns={name: take(column) for name, column in listing.columns.items()},
    )


def _below(root: str, locations: TextColumn) -> TextColumn:
    """Relative locations made absolute, as os.path.join does."""
    if not root or not len(locations.data):
        return locations
    prefix = np.frombuffer(f"{root.rstrip('/')}/".encode("utf-8", "surrogateescape"), np.uint8)
    starts, lengths = locations.offsets[:-1], np.diff(locations.offsets)
    first = locations.data[np.minimum(starts, len(locations.data) - 1)]
    is_relative = (lengths > 0) & (first != ord("/"))
    runs = np.stack([is_relative * len(prefix), lengths], axis=1)
    is_prefix = np.repeat(np.tile([True, False], len(locations)), runs.ravel())
    data = np.empty(len(is_prefix), np.uint8)
    data[is_prefix] = np.tile(prefix, int(is_relative.sum()))
    data[~is_prefix] = locations.data[locations.offsets[0] : locations.offsets[-1]]
    return TextColumn(np.concatenate([[0], np.cumsum(runs.sum(axis=1))]), data)
