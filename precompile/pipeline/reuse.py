"""What of a plan the generation before already has: unchanged inputs are neither read nor decoded again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from precompile.format.index import open_array, save_column
from precompile.format.text import TextColumn
from precompile.pipeline.earlier import Earlier
from precompile.pipeline.matching import match_keys
from precompile.pipeline.plan import Plan

MAX_SMALL_SHARDS = 64
"""More shards than this below a quarter of the usual size are put together into larger ones."""
NONE = -1
DECODE = -2
"""In what workers map of `copies`: the record is damaged, and known content is no reason not to decode."""


@dataclass(frozen=True, slots=True, eq=False)
class Reuse:
    """For each of n inputs: nothing, or what can be taken over. Inputs that have nothing are compiled."""

    earlier: Earlier | None
    rows: np.ndarray
    """int64 (n,): the row whose record serves the input where it lies, or NONE."""
    copies: np.ndarray
    """int64 (n,): the row whose record is copied into a new shard, since its old one is mostly dead, or NONE."""
    likely: np.ndarray
    """bool (n,): inputs of known name and size, of which only the times or the inode changed."""
    trusted: np.ndarray
    """bool (shards,): shards of `earlier` that are there and not known to be damaged."""
    damaged: np.ndarray
    """int64 (n,): the row of an input whose shard is known to be damaged, or NONE."""
    failed: Mapping[int, int] = field(default_factory=dict)
    """Unchanged inputs that stay in quarantine -> their place in `earlier.quarantined`."""
    retry_quarantined: bool = False

    @property
    def is_work(self) -> np.ndarray:
        """bool (n,): inputs that a worker must compile, look at, or copy."""
        work: np.ndarray = self.rows == NONE
        work[list(self.failed)] = False
        return work

    def save(self, directory: Path) -> None:
        save_column(directory, "copies", np.where(self.damaged != NONE, DECODE, self.copies))

    @classmethod
    def nothing(cls, count: int) -> Reuse:
        none = np.full(count, NONE, np.int64)
        return cls(None, none, none, np.zeros(count, bool), np.zeros(0, bool), none)


def find_reuse(plan: Plan, earlier: Earlier, *, distrusted: frozenset[str], retry_quarantined: bool) -> Reuse:
    """Take over every input whose key, size, times and inode are those of a sample of `earlier`.

    distrusted: files of shards that are damaged, whose samples are compiled again.
    """
    known = match_keys(earlier.index.keys, plan.keys)
    bad = np.array([shard.file in distrusted for shard in earlier.manifest.shards], bool)
    good = earlier.has_shard() & ~bad
    here = known >= 0
    damaged = np.full(len(plan), NONE, np.int64)
    damaged[here] = np.where(bad[earlier.index.record[known[here], 0]], known[here], NONE)
    here[here] = good[earlier.index.record[known[here], 0]]
    same = here.copy()
    same[here] = (earlier.stat[known[here]] == plan.stat[here]).all(axis=1)
    rows = np.where(same, known, NONE)
    moved = same.copy()
    moved[same] = _to_be_moved(earlier, known[here])[earlier.index.record[known[same], 0]]
    copies = np.where(moved, known, NONE)
    failed = {} if retry_quarantined else _still_failed(plan, earlier)
    likely = here & ~same
    likely[likely] = earlier.stat[known[likely], 0] == plan.stat[likely, 0]
    return Reuse(earlier, np.where(moved, NONE, rows), copies, likely, good, damaged, failed, retry_quarantined)


def _to_be_moved(earlier: Earlier, used: np.ndarray) -> np.ndarray:
    """bool (shards,): shards less than half of whose records are still used, and small ones if there are many."""
    shards = earlier.manifest.shards
    alive = alive_records(earlier.index.record[used], len(shards))
    moved = alive * 2 < np.array([shard.records for shard in shards])
    num_bytes = np.array([shard.bytes for shard in shards])
    small = (num_bytes * 4 < num_bytes.max()) & (alive > 0)
    return moved | small if small.sum() > MAX_SMALL_SHARDS else moved


def alive_records(record: np.ndarray, num_shards: int) -> np.ndarray:
    """int64 (num_shards,): how many records of each shard are used. record: as in Index; may name one twice."""
    per_shard = int(record[:, 1].max(initial=0)) + 1
    places = np.unique(record[:, 0] * per_shard + record[:, 1])
    return np.bincount(places // per_shard, minlength=num_shards)


def _still_failed(plan: Plan, earlier: Earlier) -> dict[int, int]:
    rows = earlier.quarantined
    inputs = match_keys(plan.keys, TextColumn.of(row.key for row in rows)).tolist()
    return {
        number: place
        for place, (row, number) in enumerate(zip(rows, inputs))
        if number >= 0 and row.stat == tuple(plan.stat[number].tolist())
    }


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Contents that the generation before has: a touched, copied or renamed file is hashed, and not decoded."""

    xxh3: np.ndarray
    """uint64 (k,), ascending: XXH3-64 of a file."""
    size: np.ndarray
    """int64 (k,): its bytes."""
    row: np.ndarray
    """int64 (k,): the row of its record; −1 − p for place p of the quarantine."""

    @classmethod
    def of(cls, reuse: Reuse) -> Known:
        earlier = reuse.earlier
        if earlier is None:
            return cls(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))
        rows = np.flatnonzero(reuse.trusted[earlier.index.record[:, 0]])
        bad = [] if reuse.retry_quarantined else [(p, row) for p, row in enumerate(earlier.quarantined) if row.xxh3]
        xxh3 = np.concatenate([np.array([int(row.xxh3, 16) for _, row in bad], np.uint64), earlier.xxh3[rows]])
        size = np.concatenate([np.array([row.size for _, row in bad], np.int64), earlier.stat[rows, 0]])
        row = np.concatenate([np.array([-1 - p for p, _ in bad], np.int64), rows])
        order = np.lexsort((-row, xxh3))  # a record before a failure of the same content
        return cls(xxh3[order], size[order], row[order])

    def find(self, xxh3: int, size: int) -> int | None:
        """The row of a content, or None."""
        place = int(self.xxh3.searchsorted(np.uint64(xxh3)))
        if place == len(self.xxh3) or int(self.xxh3[place]) != xxh3 or int(self.size[place]) != size:
            return None
        return int(self.row[place])

    def save(self, directory: Path) -> None:
        for name in ("xxh3", "size", "row"):
            save_column(directory, f"known.{name}", getattr(self, name))

    @classmethod
    def open(cls, directory: Path) -> Known:
        names = {"xxh3": "uint64", "size": "int64", "row": "int64"}
        return cls(
            **{name: open_array(directory / f"known.{name}.npy", dtype, (None,)) for name, dtype in names.items()}
        )


def open_copies(directory: Path, count: int) -> np.ndarray:
    """`Reuse.copies`, or DECODE, mapped from where `Reuse.save` wrote it."""
    return open_array(directory / "copies.npy", "int64", (count,))
