"""Loader: batches from memory reads, filled ahead by a background thread into reused buffers."""

from __future__ import annotations

import operator
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from precompile.loading.background import background_thread
from precompile.loading.dataset import CompiledDataset
from precompile.loading.filler import Filler, Group
from precompile.loading.samplers import batches, epoch_order


class Loader:
    """Iterates over batches of a CompiledDataset; a drop-in for `for images, labels in DataLoader(...)`.

    Args:
        dataset: a CompiledDataset, or a torch Subset of one (random_split). Its `fields` decide the form of a
            batch, its `split` the samples. A `transform` is applied per sample in the background thread.
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
        dataset: CompiledDataset | torch.utils.data.Subset[Any],
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
        self.dataset, self._subset = _unwrap(dataset)
        self.batch_size = batch_size
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.sampler, self.prefetch = sampler, prefetch
        self.epoch = 0
        self._idle: list[Filler] = []

    def __len__(self) -> int:
        count = self._count if self.sampler is None else len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    @property
    def _count(self) -> int:
        return len(self.dataset) if self._subset is None else len(self._subset)

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
            filler = Filler(self.dataset, self.batch_size)
        try:
            yield from self._stream(filler, order)
        finally:
            self._idle.append(filler)

    def _order(self) -> np.ndarray:
        """int64: positions in the dataset, in the order of this epoch."""
        count = self._count
        if self.sampler is None:
            order = epoch_order(count, shuffle=self.shuffle, seed=self.seed, epoch=self.epoch)
        else:
            order = np.fromiter(map(operator.index, self.sampler), np.int64)
            if order.size and not -count <= int(order.min()) <= int(order.max()) < count:
                raise IndexError(f"the sampler must give positions below {count}, got {order.min()} to {order.max()}")
        order = order if self._subset is None else self._subset[order]
        return np.where(order < 0, order + len(self.dataset), order)

    def _stream(self, filler: Filler, order: np.ndarray) -> Iterator[Any]:
        group = self.batch_size * filler.batches_per_call
        ahead = self.prefetch if filler.batches_per_call == 1 else max(2, -(-self.prefetch // filler.batches_per_call))
        todo = batches(order, group, drop_last=False)
        thread, owner = background_thread(), os.getpid()
        flying: deque[tuple[Group, Future[None]]] = deque()
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

    def _batches_of(self, job: Group) -> Iterator[Any]:
        count = len(job.positions)
        stop = count // self.batch_size * self.batch_size if self.drop_last else count
        for start in range(0, stop, self.batch_size):
            yield job.batch(start, min(start + self.batch_size, stop))


def _unwrap(dataset: Any) -> tuple[CompiledDataset, np.ndarray | None]:
    """The dataset below any Subsets, and the positions in it, int64; None are all."""
    positions: np.ndarray | None = None
    while isinstance(dataset, torch.utils.data.Subset):
        indices = np.asarray(dataset.indices, np.int64)
        positions = indices if positions is None else indices[positions]
        dataset = dataset.dataset
    if not isinstance(dataset, CompiledDataset):
        raise TypeError(f"dataset must be a CompiledDataset or a Subset of one, got {type(dataset).__name__}")
    return dataset, positions
