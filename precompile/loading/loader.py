"""Loader: batches from memory reads, filled ahead by a background thread into reused buffers."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from precompile.format.text import TextColumn
from precompile.loading.background import background_thread
from precompile.loading.buffers import BufferPool
from precompile.loading.dataset import CompiledDataset
from precompile.loading.gather import FixedGather, gather_padded
from precompile.loading.samplers import batches, epoch_order

_CALL_BYTES = 2 << 20
"""Several small batches are gathered by one call of about this size, since each call takes the GIL once."""


class Loader:
    """Iterates over batches of a CompiledDataset; a drop-in for `for images, labels in DataLoader(...)`.

    Args:
        dataset: its `fields` decide the form of a batch, its `split` the samples. A `transform` is applied per
            sample in the background thread.
        batch_size: samples per batch; the last may be smaller, unless `drop_last`.
        shuffle: a new order each epoch, a function of (seed, epoch); `set_epoch` chooses the epoch, otherwise each
            new iteration is the next one.
        sampler: positions in the dataset to read, in their order (an iterable that can be iterated once per
            epoch, such as a torch Sampler); excludes shuffle.
        prefetch: how many batches are filled ahead.

    A batch is yours: its memory is reused only after every tensor that looks at it is gone, so keeping all
    batches of an epoch is safe and merely allocates more. One thread of its own, single-threaded in torch;
    torch's thread count for everyone else is left alone. An exception in the thread is raised to the consumer.
    """

    def __init__(
        self,
        dataset: CompiledDataset,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        sampler: Iterable[int] | None = None,
        prefetch: int = 3,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("prefetch", prefetch)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {name}={value!r}")
        if type(seed) is not int or seed < 0:
            raise ValueError(f"seed must be an integer of at least 0, got seed={seed!r}")
        if sampler is not None and shuffle:
            raise ValueError("sampler and shuffle exclude each other: the sampler decides the order")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.sampler, self.prefetch = sampler, prefetch
        self.epoch = 0
        self._idle: list[_Filler] = []

    def __len__(self) -> int:
        count = len(self.dataset) if self.sampler is None else len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration runs this epoch's order."""
        self.epoch = epoch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": []}

    def __iter__(self) -> Iterator[Any]:
        order = self._order()
        self.epoch += 1
        return self._epoch(order)

    def _epoch(self, order: np.ndarray) -> Iterator[Any]:
        try:
            filler = self._idle.pop()  # a second iteration at the same time gets buffers of its own
        except IndexError:
            filler = _Filler(self.dataset, self.batch_size)
        try:
            yield from self._stream(filler, order)
        finally:
            self._idle.append(filler)

    def _order(self) -> np.ndarray:
        count = len(self.dataset)
        if self.sampler is None:
            return epoch_order(count, shuffle=self.shuffle, seed=self.seed, epoch=self.epoch)
        order = np.fromiter(self.sampler, np.int64)
        if order.size and not -count <= int(order.min()) <= int(order.max()) < count:
            raise IndexError(f"the sampler must give positions below {count}, got {order.min()} to {order.max()}")
        return np.where(order < 0, order + count, order)

    def _stream(self, filler: _Filler, order: np.ndarray) -> Iterator[Any]:
        group = self.batch_size * filler.batches_per_call
        ahead = self.prefetch if filler.batches_per_call == 1 else max(2, -(-self.prefetch // filler.batches_per_call))
        todo = batches(order, group, drop_last=False)
        thread, owner = background_thread(), os.getpid()
        flying: deque[tuple[_Group, Future[None]]] = deque()
        try:
            while True:
                if os.getpid() != owner:  # forked in the middle of the epoch: the thread stayed in the parent
                    thread, owner = background_thread(), os.getpid()
                    flying = deque((job, thread.submit(job.fill)) for job, _ in flying)
                while len(flying) < ahead and (positions := next(todo, None)) is not None:
                    job = filler.plan(positions)
                    flying.append((job, thread.submit(job.fill)))
                if not flying:
                    return
                job, done = flying.popleft()
                done.result()
                del done
                yield from self._batches_of(job)
                del job
        finally:
            if os.getpid() == owner:
                thread.shutdown(wait=True, cancel_futures=True)

    def _batches_of(self, job: _Group) -> Iterator[Any]:
        count = len(job.positions)
        stop = count // self.batch_size * self.batch_size if self.drop_last else count
        for start in range(0, stop, self.batch_size):
            yield job.batch(start, min(start + self.batch_size, stop))


@dataclass(slots=True)
class _Group:
    """Some batches in one piece: what to run in the background, and how to cut the result."""

    positions: np.ndarray
    fill: Callable[[], None]
    batch: Callable[[int, int], Any]


class _Filler:
    """Plans groups of batches: which buffers, which places, which columns. Used by the consumer's thread."""

    def __init__(self, dataset: CompiledDataset, batch_size: int) -> None:
        self._dataset = dataset
        stored = dataset.stored
        specs = [dataset.schema[name] for name in dataset.field_names]
        self._columns = [spec.name for spec in specs if spec.is_column]
        arrays = [spec for spec in specs if not spec.is_column]
        self._varying = () if stored.schema.is_fixed else tuple(arrays)
        self._fixed = {spec.name: FixedGather(stored, spec) for spec in arrays if stored.schema.is_fixed}
        self.batches_per_call = 1
        if self._fixed and dataset.transform is None:
            batch_bytes = batch_size * sum(gather.row_bytes for gather in self._fixed.values())
            self.batches_per_call = max(1, min(16, _CALL_BYTES // batch_bytes))
        rows = batch_size * self.batches_per_call
        self._pools = {name: BufferPool(rows * gather.row_bytes) for name, gather in self._fixed.items()}

    def plan(self, positions: np.ndarray) -> _Group:
        if self._dataset.transform is not None:
            return self._plan_samples(positions)
        numbers = positions + self._dataset.sample_number(0)
        columns = {name: self._take(name, numbers) for name in self._columns}
        return self._plan_padded(numbers, columns) if self._varying else self._plan_fixed(numbers, columns)

    def _plan_fixed(self, numbers: np.ndarray, columns: dict[str, Any]) -> _Group:
        places = self._dataset.stored.places(numbers)
        buffers = {name: pool.take() for name, pool in self._pools.items()}

        def fill() -> None:
            for name, gather in self._fixed.items():
                gather.fill(places, buffers[name])

        def batch(start: int, stop: int) -> Any:
            arrays = {name: gather.batch(buffers[name], start, stop) for name, gather in self._fixed.items()}
            return self._dataset.arrange({**arrays, **{name: values[start:stop] for name, values in columns.items()}})

        return _Group(numbers, fill, batch)

    def _plan_padded(self, numbers: np.ndarray, columns: dict[str, Any]) -> _Group:
        values: dict[str, Any] = dict(columns)

        def fill() -> None:
            for spec in self._varying:
                values[spec.name] = gather_padded(self._dataset.stored, spec, numbers.tolist())

        return _Group(numbers, fill, lambda start, stop: self._dataset.arrange(values))

    def _plan_samples(self, positions: np.ndarray) -> _Group:
        made: list[Any] = []

        def fill() -> None:
            made.append(self._dataset.collate(self._dataset.__getitems__(positions.tolist())))

        return _Group(positions, fill, lambda start, stop: made[-1])

    def _take(self, name: str, numbers: np.ndarray) -> Any:
        column = self._dataset.stored.index.columns[name]
        if isinstance(column, TextColumn):
            return list(column.take(numbers))
        return torch.from_numpy(column[numbers])
