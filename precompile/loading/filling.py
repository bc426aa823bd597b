"""From positions in a dataset to jobs that make batches: by memory reads, or sample by sample through Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from precompile.format.stored import Stored
from precompile.loading.batch_reader import BatchReader, Job, Reading
from precompile.loading.collate import Pad
from precompile.loading.dataset import CompiledDataset
from precompile.loading.device import Mover, Sent, mover_for
from precompile.loading.readahead import ReadAhead
from precompile.loading.subset import unwrap
from precompile.loading.windows import windows_by_field


class Filling(Protocol):
    """Plans jobs. Used by one thread at a time; a job's `fill` runs in any thread."""

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
        """int64 (n,) -> int64 (n,). Negative ones count from the end; raises IndexError for others outside."""
        if not positions.size:
            return positions
        low, high = int(positions.min()), int(positions.max())
        if not -self._count <= low <= high < self._count:
            raise IndexError(f"the sampler must give positions below {self._count}, got {low} to {high}")
        if low < 0:
            positions = np.where(positions < 0, positions + self._count, positions)
        numbers = positions if self._subset is None else self._subset[positions]
        return numbers + self._first if self._first else numbers


class MemoryFilling:
    """Nothing but memory reads."""

    def __init__(self, stored: Stored, positions: Positions, reader: BatchReader) -> None:
        self._positions, self._reader = positions, reader
        self._read_ahead = ReadAhead(stored)
        self.batches_per_call = reader.batches_per_call

    def ask_for(self, soon: Callable[[], np.ndarray]) -> Callable[[], None] | None:
        return self._read_ahead.plan(lambda: self._positions.numbers(soon()))

    def plan(self, positions: np.ndarray, sizes: list[int], epoch: int) -> Job:
        return self._reader.plan(self._positions.numbers(positions), sizes, epoch)


class SampleFilling:
    """Samples one by one, through the dataset's `transform` or a collate function of the user."""

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

    def __init__(self, filling: Filling, mover: Mover) -> None:
        self._filling, self._mover = filling, mover
        self.batches_per_call, self.ask_for = filling.batches_per_call, filling.ask_for

    def plan(self, positions: np.ndarray, sizes: list[int], epoch: int) -> Job:
        self._mover.check_process()
        job = self._filling.plan(positions, sizes, epoch)
        sent: list[Sent] = []

        def fill() -> None:
            job.fill()
            sent.extend(self._mover.send(batch) for batch in job.batches())

        return Job(fill, lambda: [batch.receive() for batch in sent], job.sizes)


def filling_for(
    dataset: Any, *, windows: Any = None, collate: Any = None, device: Any = None, seed: int = 0
) -> Filling:
    """What reads this dataset in this way. Raises TypeError or ValueError for arguments that do not fit it."""
    compiled, subset = unwrap(dataset)
    if collate is not None and not isinstance(collate, Pad) and not callable(collate):
        raise TypeError(f"collate must be Pad(...) or a callable that takes a list of samples, got {collate!r}")
    by_field = windows_by_field(windows, [compiled.schema[name] for name in compiled.field_names])
    by_sample = compiled.transform is not None or not (collate is None or isinstance(collate, Pad))
    if by_sample and by_field:
        raise ValueError("windows are read from memory as they are, without transform= or a collate function; "
                         "crop in the transform, or transform batches on the device")  # fmt: skip
    if by_sample and isinstance(collate, Pad):
        raise ValueError("Pad is for samples as they are stored; with transform= give a function as collate")
    for spec in (compiled.schema[name] for name in compiled.field_names):
        if isinstance(collate, Pad) and collate != Pad() and spec.encoding == "bmp" and not spec.is_fixed:
            raise ValueError(f"Pad is for fields of encoding raw or raw_hwc, got {spec.name} of encoding bmp")
    positions = Positions(compiled, subset)
    mover = mover_for("cpu" if device is None else device)
    filling: Filling
    if by_sample:
        filling = SampleFilling(compiled, positions, collate or compiled.collate)
    else:
        reading = Reading(by_field, collate or Pad(), seed)
        names, arrange = compiled.field_names, compiled.arrange
        reader = BatchReader(compiled.stored, names, arrange, reading=reading, make_buffers=mover.buffers)
        filling = MemoryFilling(compiled.stored, positions, reader)
    return filling if mover.device.type == "cpu" else MovedFilling(filling, mover)
