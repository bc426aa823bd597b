"""What plans jobs for a Loader, and positions as sample numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, Protocol

import numpy as np

from precompile.loading.dataset import CompiledDataset
from precompile.loading.reading.batch_reader import Job

FilledBy = Literal["threads", "itself", "nobody"]
"""Who runs ahead: copy threads run `fill`; what `plan` starts runs by itself, and `fill` waits; or each batch is made
when it is asked for."""


class Filling(Protocol):
    """Plans jobs. Used by one thread at a time; a job's `fill` runs in any thread, if `filled_by` threads."""

    filled_by: ClassVar[FilledBy]

    def batches_per_call(self, batch_size: int, seconds_per_sample: float | None = None) -> int:
        """How many batches are best planned at once, given how long a sample takes, if that is known."""
        ...

    def processes(self) -> list[tuple[str, int]]:
        """Name and process id of workers that make its batches."""
        ...

    def plan(self, positions: np.ndarray, sizes: list[int], epoch: int) -> Job:
        """Some batches in one piece: int64 positions, and how many of each batch."""
        ...

    def ask_for(self, soon: Callable[[], np.ndarray]) -> Callable[[], None] | None:
        """What asks the disk for the positions that `soon` gives, to be called in any thread; None: no need to."""
        ...


class Positions:
    """Positions in a dataset, or in a Subset of it, as sample numbers of the generation."""

    def __init__(self, dataset: CompiledDataset, subset: np.ndarray | None) -> None:
        self._count = len(dataset) if subset is None else len(subset)
        self._first = dataset.sample_number(0) if len(dataset) else 0
        self._subset = subset

    def numbers(self, positions: np.ndarray) -> np.ndarray:
        """int64 (n,) -> int64 (n,)."""
        positions = from_the_front(positions, self._count)
        numbers = positions if self._subset is None else self._subset[positions]
        return numbers + self._first if self._first else numbers


def from_the_front(positions: np.ndarray, count: int) -> np.ndarray:
    """Positions from 0 to count - 1; negative ones count from the end. Raises IndexError for others."""
    if not positions.size:
        return positions
    low, high = int(positions.min()), int(positions.max())
    if not -count <= low <= high < count:
        raise IndexError(f"the sampler must give positions below {count}, got {low} to {high}")
    return np.where(positions < 0, positions + count, positions) if low < 0 else positions
