"""A shuffle that reads long runs of the disk: runs in random order, samples mixed within a window of many runs."""

from __future__ import annotations

import numpy as np

from precompile.loading.sampling.orders import Recent, check_part
from precompile.loading.sampling.permutation import Permutation, random_below
from precompile.loading.sampling.ranks import Rank
from precompile.loading.sampling.storage_order import StorageOrder

_RUNS, _ROTATION, _WINDOW = 1, 2, 3
"""Tell apart what is drawn for one (seed, epoch)."""


class ShuffledRuns:
    """The storage order of one epoch: rotated, cut to runs of `run_samples`, the full runs permuted, the rest last.

    A slot is a place in this sequence.
    """

    def __init__(self, storage: StorageOrder, run_samples: int, key: tuple[int, int]) -> None:
        self.storage, self.run_samples, self.count = storage, run_samples, storage.count
        self._full_runs = self.count // run_samples
        self._order = Permutation(self._full_runs, *key, _RUNS)
        self._rotation = random_below(max(1, self.count), *key, _ROTATION)

    def ranks(self, slots: np.ndarray) -> np.ndarray:
        """int64 (n,) slots -> int64 (n,) places in storage order."""
        runs, within = np.divmod(slots, self.run_samples)
        full = runs < self._full_runs
        runs[full] = self._order(runs[full])
        places: np.ndarray = (runs * self.run_samples + within + self._rotation) % max(1, self.count)
        return places

    def positions(self, slots: np.ndarray, *, as_stored: bool = False) -> np.ndarray:
        """int64 (n,) slots -> int64 (n,) positions in the dataset; `as_stored` sorts them by where they lie."""
        ranks = self.ranks(slots)
        if as_stored:
            ranks.sort()
        return self.storage.position(ranks)


class BlockOrder:
    """One rank's run of slots, cut to windows of up to `window_runs` runs, each window shuffled.

    start: how many of them were read before.
    """

    def __init__(self, runs: ShuffledRuns, window_runs: int, key: tuple[int, int], rank: Rank, start: int) -> None:
        self._runs, self._key, self._rank = runs, key, rank
        self._total = rank.share(runs.count)
        self._start = min(start, self._total)
        padded = rank.remainder == "pad"
        self._first_slot = rank.number * runs.count // rank.world_size if padded else rank.number * self._total
        # Windows of one size: a short last one would mix badly.
        num_windows = -(-max(1, self._total) // (window_runs * runs.run_samples))
        window_samples = -(-max(1, self._total) // num_windows)
        self._window = -(-window_samples // runs.run_samples) * runs.run_samples
        self._mixed: Recent[Permutation] = Recent()

    def __len__(self) -> int:
        return self._total - self._start

    def read(self, start: int, stop: int) -> np.ndarray:
        check_part(start, stop, len(self))
        return self._runs.positions(self._mixed_slots(self._start + start, self._start + stop))

    def ahead(self, start: int, stop: int) -> np.ndarray:
        """The same share of the next window as [start, stop) is of its own, in storage order: long runs.

        At the beginning also what is left of the first window.
        """
        check_part(start, stop, len(self))
        begin, end = self._frontier(self._start + start), self._frontier(self._start + stop)
        if start > 0 or not len(self):
            return self._runs.positions(self._first_slot + np.arange(begin, end), as_stored=True)
        next_window = min((self._start // self._window + 1) * self._window, self._total)
        rest = self._mixed_slots(self._start, next_window)
        slots = np.concatenate([rest, self._first_slot + np.arange(next_window, end)])
        return self._runs.positions(slots, as_stored=True)

    def _frontier(self, place: int) -> int:
        """Up to where the disk has been asked when reading has come to `place`."""
        window = place // self._window * self._window
        ahead = min(window + self._window, self._total)
        size, size_ahead = ahead - window, min(self._window, self._total - ahead)
        return ahead + (place - window) * size_ahead // max(1, size)

    def _mixed_slots(self, start: int, stop: int) -> np.ndarray:
        parts = [np.empty(0, np.int64)]
        for number in range(start // self._window, -(-stop // self._window)):
            first = number * self._window
            inside = np.arange(max(start - first, 0), min(stop - first, self._window))
            parts.append(self._first_slot + first + self._mixed.get(number, self._mix)(inside))
        return np.concatenate(parts)

    def _mix(self, number: int) -> Permutation:
        size = min(self._window, self._total - number * self._window)
        return Permutation(size, *self._key, _WINDOW, self._rank.number, number)
