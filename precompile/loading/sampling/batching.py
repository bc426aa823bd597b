"""An epoch as batches: from an order of positions, from a sampler of ours, or from any iterable."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from precompile.loading.sampling.orders import Batches, Epoch, Order
from precompile.loading.sampling.ranks import checked_integer


@runtime_checkable
class EpochSource(Protocol):
    """What the samplers of this package are: epochs that can be entered anywhere, with a state."""

    def begin(self) -> Epoch: ...
    def set_epoch(self, epoch: int) -> None: ...
    def state(self, epoch: Epoch, consumed: int) -> dict[str, Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FixedBatches:
    """Consecutive runs of `batch_size` positions of an order; the last may be shorter, or is dropped."""

    order: Order
    batch_size: int
    drop_last: bool

    def __len__(self) -> int:
        return number_of_batches(len(self.order), self.batch_size, self.drop_last)

    def batch(self, number: int) -> np.ndarray:
        return self.order.read(*self._bounds(number))

    def ahead(self, number: int) -> np.ndarray:
        return self.order.ahead(*self._bounds(number))

    def _bounds(self, number: int) -> tuple[int, int]:
        begin = number * self.batch_size
        return begin, min(begin + self.batch_size, len(self.order))


def fixed_batches(order: Order | Batches, batch_size: int | None, drop_last: bool) -> Batches:
    """What a sampler gave as batches: itself if it is batches already."""
    if hasattr(order, "batch"):
        return cast(Batches, order)
    assert batch_size is not None
    return FixedBatches(order, batch_size, drop_last)


def read_batches(batches: Batches, first: int, last: int) -> tuple[np.ndarray, list[int]]:
    """Batches `first` to `last` - 1 in one piece: int64 positions, and how many of each batch."""
    if isinstance(batches, FixedBatches):
        start, stop, size = first * batches.batch_size, last * batches.batch_size, batches.batch_size
        stop = min(stop, len(batches.order))
        return batches.order.read(start, stop), [min(size, stop - begin) for begin in range(start, stop, size)]
    parts = [batches.batch(number) for number in range(first, last)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts), [len(part) for part in parts]


def positions_to_ask_for(batches: Batches, first: int, last: int) -> np.ndarray:
    """int64: what to ask of the disk when reading of batches `first` to `last` - 1 begins.

    The disk is kept busy by two such parts: one that is read when its bytes have come, one that comes meanwhile.
    """
    beyond = min(2 * last - first, len(batches))
    soon = _ahead(batches, last, beyond) if last < beyond else np.empty(0, np.int64)
    if first:
        return soon
    return np.concatenate([read_batches(batches, first, last)[0], _ahead(batches, first, last), soon])


def _ahead(batches: Batches, first: int, last: int) -> np.ndarray:
    if isinstance(batches, FixedBatches):
        start, stop = first * batches.batch_size, min(last * batches.batch_size, len(batches.order))
        return batches.order.ahead(start, stop)
    return np.concatenate([batches.ahead(number) for number in range(first, last)])


@dataclass(frozen=True, slots=True)
class ListedBatches:
    """Batches that a batch sampler listed."""

    listed: Sequence[np.ndarray]

    def __len__(self) -> int:
        return len(self.listed)

    def batch(self, number: int) -> np.ndarray:
        return self.listed[number]

    def ahead(self, number: int) -> np.ndarray:
        return self.listed[number + 1] if number + 1 < len(self.listed) else np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class ListedOrder:
    """An order that any sampler gave."""

    positions: np.ndarray

    def __len__(self) -> int:
        return len(self.positions)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.positions[start:stop]

    def ahead(self, start: int, stop: int) -> np.ndarray:
        return self.positions[stop : 2 * stop - start]


class IterableSampler:
    """An EpochSource over any iterable of positions, or of batches of positions, that can be iterated once per epoch.

    It resumes by skipping, so it repeats nothing exactly when the iterable gives the same epoch again.
    """

    def __init__(self, sampler: Iterable[Any], *, gives_batches: bool) -> None:
        self._sampler = sampler
        self._gives_batches = gives_batches
        self._epoch, self._start = 0, 0

    def __len__(self) -> int:
        return max(len(self._sampler) - self._start, 0)  # type: ignore[arg-type]

    def begin(self) -> Epoch:
        content: Order | Batches
        if self._gives_batches:
            listed = [as_positions(batch) for batch in self._sampler]
            if not all(batch.size for batch in listed):
                raise ValueError("the sampler must give batches of at least one position, got an empty one")
            content = ListedBatches(listed[self._start :])
        else:
            content = ListedOrder(as_positions(self._sampler)[self._start :])
        epoch = Epoch(self._epoch, content, self._start, 1)
        self._epoch, self._start = self._epoch + 1, 0
        return epoch

    def set_epoch(self, epoch: int) -> None:
        epoch = checked_integer("epoch", epoch, 0)
        if epoch != self._epoch:
            self._epoch, self._start = epoch, 0
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def state(self, epoch: Epoch, consumed: int) -> dict[str, Any]:
        return {"epoch": epoch.number, "consumed": epoch.start + consumed}

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "consumed": self._start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not isinstance(state, Mapping) or set(state) != {"epoch", "consumed"}:
            raise ValueError(f"the state must be one of this kind of sampler, with epoch and consumed, got {state!r}")
        epoch, start = (checked_integer(name, state[name], 0) for name in ("epoch", "consumed"))
        self._epoch, self._start = epoch, start
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(self._epoch)


def number_of_batches(count: int, batch_size: int, drop_last: bool) -> int:
    return max(count // batch_size if drop_last else -(-count // batch_size), 0)


def as_positions(positions: Any) -> np.ndarray:
    """int64 (n,) from any iterable of integers."""
    if isinstance(positions, np.ndarray) and positions.dtype.kind == "i" and positions.ndim == 1:
        return positions.astype(np.int64, copy=False)
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
    try:
        return np.fromiter(map(operator.index, positions), np.int64)
    except TypeError as error:
        raise TypeError(
            f"the sampler must give positions, or with batch_size=None batches of positions, as integers; {error}"
        ) from None
