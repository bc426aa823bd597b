"""Batches of samples of similar length: a random order in windows that are sorted by length and cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precompile.loading.sampling.orders import Recent
from precompile.loading.sampling.permutation import Permutation
from precompile.loading.sampling.ranks import checked_integer
from precompile.loading.sampling.sorting import stable_argsort


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a batch may be: at most `batch_size` samples, and samples x longest at most `batch_frames`.

    A sample longer than batch_frames is a batch of its own. Raises ValueError when neither is given.
    """

    batch_size: int | None = None
    batch_frames: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size is None and self.batch_frames is None:
            raise ValueError("give batch_size, batch_frames or both; got neither")
        for name in ("batch_size", "batch_frames"):
            if getattr(self, name) is not None:
                checked_integer(name, getattr(self, name), 1)

    def typical_size(self, mean_length: float) -> float:
        """Samples in a batch of samples of this length."""
        by_size = float("inf") if self.batch_size is None else float(self.batch_size)
        by_frames = float("inf") if self.batch_frames is None else self.batch_frames / max(1.0, mean_length)
        return max(1.0, min(by_size, by_frames))

    def cut(self, lengths: np.ndarray) -> np.ndarray:
        """int64 (n,) in descending order -> int64 (batches,) where each batch starts."""
        if self.batch_frames is None:
            return np.arange(0, len(lengths), self.batch_size)
        sizes = np.clip(self.batch_frames // np.maximum(lengths, 1), 1, self.batch_size)
        starts, start = [], 0
        while start < len(lengths):
            starts.append(start)
            start += sizes.item(start)
        return np.array(starts, np.int64)


class SortedWindows:
    """The batches of one epoch of all ranks; within a window from the longest samples to the shortest.

    lengths: int64 (n,), of all samples. count: how many of the order are used. order: None is source order.
    ends: int64 (windows,), how many batches there are up to the end of each window.
    """

    def __init__(
        self, lengths: np.ndarray, limits: BatchLimits, order: Permutation | None, *, count: int, window_samples: int
    ) -> None:
        self._lengths, self._limits, self._order = lengths, limits, order
        self._count, self._window_samples = count, window_samples
        self._recent: Recent[tuple[np.ndarray, np.ndarray]] = Recent()
        num_windows = -(-count // window_samples)
        self.ends = np.cumsum([self._count_batches(number) for number in range(num_windows)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def batch(self, number: int) -> np.ndarray:
        """int64 (size,): the positions of a batch; equal lengths are in random order."""
        window = int(self.ends.searchsorted(number, side="right"))
        positions, bounds = self._recent.get(window, self._sorted)
        local = number - (int(self.ends[window - 1]) if window else 0)
        return positions[bounds[local] : bounds[local + 1]].copy()

    def _places(self, window: int) -> tuple[int, int]:
        start = window * self._window_samples
        return start, min(start + self._window_samples, self._count)

    def _positions(self, window: int) -> np.ndarray:
        places = np.arange(*self._places(window))
        return places if self._order is None else self._order(places)

    def _count_batches(self, window: int) -> int:
        if self._limits.batch_frames is None:  # whatever the lengths are
            return len(range(*self._places(window), self._limits.batch_size or 1))
        return len(self._limits.cut(np.sort(self._lengths[self._positions(window)])[::-1]))

    def _sorted(self, window: int) -> tuple[np.ndarray, np.ndarray]:
        positions = self._positions(window)
        lengths = self._lengths[positions]
        descending = stable_argsort(lengths.max() - lengths)
        positions, starts = positions[descending], self._limits.cut(lengths[descending])
        return positions, np.append(starts, len(positions))
