"""From positions in a dataset to jobs that make batches: by memory reads, or sample by sample through Python."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeGuard

import numpy as np
import torch

from precompile.format.stored import Stored
from precompile.loading.dataset import CompiledDataset
from precompile.loading.reading.batch_reader import BatchReader, Job, Reading
from precompile.loading.reading.buffers import BufferPool
from precompile.loading.reading.collate import Pad
from precompile.loading.reading.readahead import ReadAhead
from precompile.loading.reading.windows import windows_by_field
from precompile.loading.sampling.subset import unwrap

if TYPE_CHECKING:
    from precompile.loading.devices.device import Mover, Sent
    from precompile.loading.devices.resident import ResidentDataset


class Filling(Protocol):
    """Plans jobs. Used by one thread at a time; a job's `fill` runs in any thread.

    runs_ahead: whether there is anything to do before a batch is asked for.
    """

    runs_ahead: ClassVar[bool]

    def batches_per_call(self, batch_size: int) -> int: ...

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


class MemoryFilling:
    """Nothing but memory reads."""

    runs_ahead: ClassVar[bool] = True

    def __init__(self, stored: Stored, positions: Positions, reader: BatchReader) -> None:
        self._positions, self._reader = positions, reader
        self._read_ahead = ReadAhead(stored) if reader.reads_records else None
        self.batches_per_call = reader.batches_per_call

    def ask_for(self, soon: Callable[[], np.ndarray]) -> Callable[[], None] | None:
        if self._read_ahead is None:
            return None
        return self._read_ahead.plan(lambda: self._positions.numbers(soon()))

    def plan(self, positions: np.ndarray, sizes: list[int], epoch: int) -> Job:
        return self._reader.plan(self._positions.numbers(positions), sizes, epoch)


class SampleFilling:
    """Samples one by one, through the dataset's `transform` or a collate function of the user."""

    runs_ahead: ClassVar[bool] = True

    def __init__(self, dataset: CompiledDataset, positions: Positions, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._positions, self._collate = dataset, positions, collate
        self._read_ahead = ReadAhead(dataset.stored)

    def batches_per_call(self, batch_size: int) -> int:
        return 1

    def ask_for(self, soon: Callable[[], np.ndarray]) -> Callable[[], None] | None:
        return self._read_ahead.plan(lambda: self._positions.numbers(soon()))

    def plan(self, positions: np.ndarray, sizes: list[int], epoch: int) -> Job:
        assert len(sizes) == 1
        indices = (self._positions.numbers(positions) - self._dataset.sample_number(0)).tolist()
        made: list[Any] = []
        return Job(lambda: made.append(self._collate(self._dataset.__getitems__(indices))), lambda: made, sizes)


class MovedFilling:
    """Another filling, whose batches are sent to a device as soon as they are filled."""

    runs_ahead: ClassVar[bool] = True

    def __init__(self, filling: Filling, mover: Mover) -> None:
        self._filling, self._mover = filling, mover
        self.batches_per_call, self.ask_for = filling.batches_per_call, filling.ask_for

    def plan(self, positions: np.ndarray, sizes: list[int], epoch: int) -> Job:
        self._mover.check_process()
        planned = deque([self._filling.plan(positions, sizes, epoch)])
        sent: deque[Sent] = deque()

        def fill() -> None:
            self._mover.check_process()  # pinned memory does not outlive a fork
            planned[0].fill()
            sent.extend(map(self._mover.send, planned[0].batches()))
            planned.clear()  # lets go of the host buffers

        def batches() -> Iterator[Any]:
            while sent:
                yield sent.popleft().receive()

        return Job(fill, batches, sizes)


class ResidentFilling:
    """Batches of a dataset that is on a device: gathered there when they are asked for."""

    runs_ahead: ClassVar[bool] = False

    def __init__(self, dataset: ResidentDataset) -> None:
        self._dataset = dataset

    def batches_per_call(self, batch_size: int) -> int:
        return 1

    def ask_for(self, soon: Callable[[], np.ndarray]) -> None:
        return None

    def plan(self, positions: np.ndarray, sizes: list[int], epoch: int) -> Job:
        positions = from_the_front(positions, len(self._dataset))
        return Job(lambda: None, lambda: [self._dataset.batch(positions)], sizes)


def filling_for(
    dataset: Any, *, windows: Any = None, collate: Any = None, device: Any = None, seed: int = 0
) -> Filling:
    """What reads this dataset in this way. Raises TypeError or ValueError for arguments that do not fit it."""
    if is_resident(dataset):
        elsewhere = device is not None and torch.device(device).type != dataset.device.type
        options = (("windows", windows is not None), ("collate", collate is not None), ("another device", elsewhere))
        given = [name for name, is_given in options if is_given]
        if given:
            raise ValueError(f"a dataset that to_tensors has put on {dataset.device} gives its samples as they are "
                             f"there: it takes no {' and no '.join(given)}")  # fmt: skip
        return ResidentFilling(dataset)
    compiled, subset = unwrap(dataset)
    if collate is not None and not isinstance(collate, Pad) and not callable(collate):
        raise TypeError(f"collate must be Pad(...) or a callable that takes a list of samples, got {collate!r}")
    by_field = windows_by_field(windows, [compiled.schema[name] for name in compiled.field_names])
    overrides = type(compiled).__getitems__ is not CompiledDataset.__getitems__
    as_stored = compiled.reads_as_stored and not overrides
    by_sample = not as_stored or not (collate is None or isinstance(collate, Pad))
    if by_sample and by_field:
        raise ValueError("windows are read from memory as they are, without transform=, a collate function or another "
                         "__getitem__; crop there, or transform batches on the device")  # fmt: skip
    if by_sample and isinstance(collate, Pad):
        raise ValueError("Pad is for samples as they are stored; with transform= give a function as collate")
    for spec in (compiled.schema[name] for name in compiled.field_names):
        if isinstance(collate, Pad) and not spec.is_fixed:
            collate.check(spec)
    positions = Positions(compiled, subset)
    mover = None if device is None else _mover(device)
    filling: Filling
    if by_sample:
        filling = SampleFilling(compiled, positions, collate or compiled.collate)
    else:
        reading = Reading(by_field, collate or Pad(), seed)
        names, arrange = compiled.field_names, compiled.arrange
        make_buffers = mover.buffers if mover else BufferPool
        reader = BatchReader(compiled.stored, names, arrange, reading=reading, make_buffers=make_buffers)
        filling = MemoryFilling(compiled.stored, positions, reader)
    return MovedFilling(filling, mover) if mover else filling


def _mover(device: str | torch.device) -> Mover | None:
    """None where batches are to stay as they are."""
    from precompile.loading.devices.device import PlainMover, mover_for  # 10 ms that not everybody needs

    mover = mover_for(device)
    return None if isinstance(mover, PlainMover) and mover.device.type == "cpu" else mover


def is_resident(dataset: Any) -> TypeGuard[ResidentDataset]:
    """Whether it is one of `to_tensors`: it makes batches itself."""
    return hasattr(dataset, "batch")


def from_the_front(positions: np.ndarray, count: int) -> np.ndarray:
    """Positions from 0 to count - 1; negative ones count from the end. Raises IndexError for others."""
    if not positions.size:
        return positions
    low, high = int(positions.min()), int(positions.max())
    if not -count <= low <= high < count:
        raise IndexError(f"the sampler must give positions below {count}, got {low} to {high}")
    return np.where(positions < 0, positions + count, positions) if low < 0 else positions
