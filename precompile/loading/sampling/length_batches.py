"""LengthBatchSampler: batches of samples of similar length, so that little is padded."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from precompile.loading.sampling.epoch_sampler import EpochSampler
from precompile.loading.sampling.lengths import checksum, given_lengths, sample_lengths
from precompile.loading.sampling.orders import Batches, Recent
from precompile.loading.sampling.permutation import Permutation
from precompile.loading.sampling.ranks import Rank, Ranks, checked_integer
from precompile.loading.sampling.samplers import count_of
from precompile.loading.sampling.sorted_windows import BatchLimits, SortedWindows

_GROUPS = 4
"""Tells what is drawn here from what else is drawn for one (seed, epoch)."""


class LengthBatchSampler(EpochSampler[list[int]]):
    """Batches of positions whose samples have similar lengths; for `DataLoader(batch_sampler=…)` and for Loader.

    A random order is cut to windows of about `window_batches` batches of each rank. Within a window samples are sorted
    by length and cut to batches, and batches that follow each other go to different ranks, so that at every step all
    ranks have equally many samples of about the same length. The steps of a window are shuffled.

    Args:
        dataset: a CompiledDataset or a torch Subset of one; with `lengths` any dataset, or the number of its samples.
        batch_size: at most so many samples in a batch.
        batch_frames: at most so many elements along the axis that varies, with padding: samples x longest. A longer
            sample is a batch of its own. Counting the batches needs a look at all lengths at the beginning of an epoch.
        field: the field whose size counts; None is the first that varies. For images it is height x width.
        lengths: (n,) whole numbers to take in place of the field's sizes.
        shuffle: False takes source order for the random one and leaves the steps in theirs.
        drop_last: leave out the last samples of the order that fill no batch. Only without batch_frames.
        rank, world_size: of torch.distributed when it is initialised, else 0 and 1. Give both or neither.
        remainder: when the batches do not divide by the ranks, `pad` repeats some of the last, `drop` leaves them out.

    A state goes on with the same number of ranks only. Raises TypeError for another dataset, ValueError for a value out
    of its range.
    """

    gives_batches = True

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int | None = None,
        batch_frames: int | None = None,
        field: str | None = None,
        lengths: Any = None,
        shuffle: bool = True,
        seed: int = 0,
        window_batches: int = 100,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        remainder: str = "pad",
    ) -> None:
        super().__init__(count_of(dataset), seed, Ranks(rank, world_size, remainder))
        if batch_size is not None:
            batch_size = checked_integer("batch_size", batch_size, 1)
        if batch_frames is not None:
            batch_frames = checked_integer("batch_frames", batch_frames, 1)
        self.limits = BatchLimits(batch_size, batch_frames)
        if drop_last and batch_frames is not None:
            raise ValueError("drop_last goes with batch_size alone: batches of batch_frames have no full size")
        if lengths is not None and field is not None:
            raise ValueError(f"field and lengths exclude each other, got lengths and {field=}")
        self._lengths = sample_lengths(dataset, field) if lengths is None else given_lengths(lengths, self.count)
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        self.window_batches = checked_integer("window_batches", window_batches, 1)
        self._planned: tuple[tuple[int, int], SortedWindows] | None = None

    @cached_property
    def _checksum(self) -> int:
        return checksum(self._lengths)

    @cached_property
    def _rank_window_samples(self) -> float:
        """How many samples of a window one rank reads."""
        frames = self.limits.batch_frames is not None and self.count > 0
        return self.window_batches * self.limits.typical_size(float(self._lengths.mean()) if frames else 0.0)

    def _identity(self, rank: Rank) -> dict[str, Any]:
        return {
            "batch_size": self.limits.batch_size,
            "batch_frames": self.limits.batch_frames,
            "shuffle": self.shuffle,
            "window_batches": self.window_batches,
            "drop_last": self.drop_last,
            "world_size": rank.world_size,
            "remainder": rank.remainder,
            "lengths": self._checksum,
        }

    def _length(self, epoch: int, start: int, rank: Rank) -> int:
        return len(self._order(epoch, start, rank))

    def _order(self, epoch: int, start: int, rank: Rank) -> Batches:
        key = (self.seed, epoch) if self.shuffle else None
        return LengthBatches(self._windows(epoch, rank.world_size), key, rank, start)

    def _items(self, order: Batches) -> Iterator[list[int]]:
        for number in range(len(order)):
            yield order.batch(number).tolist()

    def _windows(self, epoch: int, world_size: int) -> SortedWindows:
        """The batches of an epoch; kept, since `len` and `begin` both need them."""
        planned = self._planned
        if planned is None or planned[0] != (epoch, world_size):
            dropped = self.count % self.limits.batch_size if self.drop_last and self.limits.batch_size else 0
            order = Permutation(self.count, self.seed, epoch) if self.shuffle else None
            windows = SortedWindows(
                self._lengths,
                self.limits,
                order,
                count=self.count - dropped,
                window_samples=max(1, round(self._rank_window_samples) * world_size),
            )
            planned = self._planned = ((epoch, world_size), windows)
        return planned[1]


class LengthBatches:
    """One rank's batches: of each group of world_size batches that follow each other, one.

    A group belongs to the window in which it begins; groups are shuffled within their window by `key`, or not at all.
    start: how many batches were read before.
    """

    def __init__(self, windows: SortedWindows, key: tuple[int, int] | None, rank: Rank, start: int) -> None:
        self._windows, self._key, self._rank = windows, key, rank
        self._total = rank.share(len(windows))
        self._start = min(start, self._total)
        self._window_ends = np.minimum(-(-windows.ends // rank.world_size), self._total)
        """int64 (windows,): how many groups begin up to the end of each window."""
        self._recent: Recent[np.ndarray] = Recent()

    def __len__(self) -> int:
        return self._total - self._start

    def batch(self, number: int) -> np.ndarray:
        if not 0 <= number < len(self):
            raise IndexError(f"a batch number must be from 0 to {len(self) - 1}, got {number}")
        group, world_size = self._group(self._start + number), self._rank.world_size
        # The last group takes the batches before the end once more, which are as long, rather than too few.
        first = max(0, min(group * world_size, len(self._windows) - world_size))
        member = (self._rank.number + group) % world_size  # no rank has the longest of each group
        return self._windows.batch((first + member) % len(self._windows))

    def ahead(self, number: int) -> np.ndarray:
        return self.batch(number + 1) if number + 1 < len(self) else np.empty(0, np.int64)

    def _group(self, place: int) -> int:
        if self._key is None:
            return place
        window = int(self._window_ends.searchsorted(place, side="right"))
        return int(self._recent.get(window, self._shuffled)[place - self._first_group(window)])

    def _first_group(self, window: int) -> int:
        return int(self._window_ends[window - 1]) if window else 0

    def _shuffled(self, window: int) -> np.ndarray:
        """int64: the groups of a window in their order."""
        assert self._key is not None
        first = self._first_group(window)
        count = int(self._window_ends[window]) - first
        return first + Permutation(count, *self._key, _GROUPS, window)(np.arange(count))
