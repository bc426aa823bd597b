"""What one process reads in one epoch, known in advance and at any place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from precompile.loading.sampling.permutation import Permutation
from precompile.loading.sampling.ranks import Rank

READ_TOGETHER = 4096
"""Places of a large permutation that are computed in one go: 256 alone cost six times as much each."""

_Value = TypeVar("_Value")


class Order(Protocol):
    """Positions in a dataset, one after another. Immutable; safe in threads."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """int64 (stop - start,): any part, at any time. IndexError for a part outside of 0 … len."""
        ...

    def ahead(self, start: int, stop: int) -> np.ndarray:
        """int64: positions whose bytes to ask of the disk when reading of [start, stop) begins.

        Who asks for the parts of an epoch one after another asks for every position that is not in the first part.
        """
        ...


@runtime_checkable
class Batches(Protocol):
    """Batches of positions in a dataset, one after another. Immutable; safe in threads."""

    def __len__(self) -> int: ...

    def batch(self, number: int) -> np.ndarray:
        """int64 (size,): any batch, at any time. IndexError for a number outside of 0 … len - 1."""
        ...

    def ahead(self, number: int) -> np.ndarray:
        """int64: positions whose bytes to ask of the disk when reading of this batch begins."""
        ...


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of one process, or the rest of it after a resume."""

    number: int
    order: Order | Batches
    """What is still to be read."""
    start: int
    """How much was read before: positions of all ranks together for ShuffleSampler, positions of this rank for
    BlockShuffleSampler, batches of this rank for LengthBatchSampler."""
    world_size: int


def check_part(start: int, stop: int, count: int) -> None:
    if not 0 <= start <= stop <= count:
        raise IndexError(f"expected 0 <= start <= stop <= {count}, got start={start} and stop={stop}")


class Recent(Generic[_Value]):
    """Keeps the last two values of a function of a number. Threads may compute one twice, never get a wrong one."""

    def __init__(self) -> None:
        self._pairs: tuple[tuple[int, _Value], ...] = ()

    def get(self, number: int, make: Callable[[int], _Value]) -> _Value:
        for key, value in self._pairs:
            if key == number:
                return value
        value = make(number)
        self._pairs = ((number, value), *self._pairs[:1])
        return value


@dataclass(frozen=True, slots=True)
class InterleavedOrder:
    """Every world_size-th number of a permutation from the global place `start` on; the numbers are positions.

    permutation: None is 0 … count - 1 in order.
    """

    permutation: Permutation | None
    count: int
    start: int
    rank: Rank
    _recent: Recent[np.ndarray] = field(default_factory=Recent, repr=False, compare=False)

    def __len__(self) -> int:
        return self.rank.share(max(0, self.count - self.start))

    def read(self, start: int, stop: int) -> np.ndarray:
        check_part(start, stop, len(self))
        if self.permutation is None or stop - start >= READ_TOGETHER:
            return self._compute(start, stop)
        parts = [np.empty(0, np.int64)]
        for number in range(start // READ_TOGETHER, -(-stop // READ_TOGETHER)):
            first = number * READ_TOGETHER
            parts.append(self._recent.get(number, self._block)[max(0, start - first) : stop - first])
        return np.concatenate(parts)

    def ahead(self, start: int, stop: int) -> np.ndarray:
        check_part(start, stop, len(self))
        return self.read(stop, min(2 * stop - start, len(self)))

    def _block(self, number: int) -> np.ndarray:
        first = number * READ_TOGETHER
        return self._compute(first, min(first + READ_TOGETHER, len(self)))

    def _compute(self, start: int, stop: int) -> np.ndarray:
        step = self.rank.world_size
        first = self.start + self.rank.number
        places = np.arange(first + start * step, first + stop * step, step)
        if places.size and places[-1] >= self.count:
            places %= self.count
        return places if self.permutation is None else self.permutation(places)
