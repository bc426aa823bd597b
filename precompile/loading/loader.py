"""Loader: batches from memory reads, filled ahead by background threads into reused buffers."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from precompile.loading.arguments import checked_timeout, epoch_sampler, unknown_arguments
from precompile.loading.background import CopyThreads, run_ahead, run_started
from precompile.loading.dataset import CompiledDataset
from precompile.loading.filling import How, filling_for, is_resident
from precompile.loading.fillings.filling import Filling
from precompile.loading.reading.batch_reader import Job
from precompile.loading.reading.windows import Window
from precompile.loading.sampling.batching import (
    fixed_batches,
    number_of_batches,
    positions_to_ask_for,
    read_batches,
)
from precompile.loading.sampling.orders import Batches, Epoch
from precompile.loading.sampling.ranks import Ranks, checked_integer
from precompile.loading.watching.patience import Patience

if TYPE_CHECKING:
    from precompile.loading.devices.resident import ResidentDataset


class Loader:
    """Iterates over batches of a CompiledDataset; a drop-in for `for images, labels in DataLoader(...)`.

    Args:
        dataset: a CompiledDataset, a torch Subset of one (random_split), or what `to_tensors` made of one. Its
            `fields` decide the form of a batch, its `split` the samples. A `transform` runs per sample, in a thread.
        batch_size: samples per batch; the last may be smaller, unless `drop_last`. None when a sampler gives batches.
        shuffle: a new order each epoch, a function of (seed, epoch); `set_epoch` chooses the epoch, otherwise each
            new iteration is the next one.
        sampler: which positions of the dataset to read, in which order; excludes shuffle. One of precompile's
            (ShuffleSampler, BlockShuffleSampler, LengthBatchSampler; they also split over ranks), or any iterable of
            positions, or with batch_size=None of batches of positions, that can be iterated once per epoch.
        batch_frames: batches of samples of similar length with at most this many frames, padding included (and at
            most batch_size samples).
        windows: a window for the first array field, such as RandomCrop(224), or a dict of windows by field. Only
            the bytes of the window are copied. Drawn by (seed, epoch, sample).
        collate: Pad(...) to choose padding; or a callable that makes a batch of a list of samples, run in a thread.
        device: where batches are to be, such as "cuda": pinned buffers, and copies that run while the step does.
        threads: of its own, which copy; each is single-threaded in torch, whose thread count elsewhere is left alone.
        prefetch: how many batches are filled ahead; 0: none, and no threads, each is filled when it is asked for.
        workers: processes that make the batches, for a `transform` or a `collate` that takes long in Python; they stay
            from epoch to epoch. Batches come through shared memory without a copy.
        start_method: of the workers: "fork", "forkserver" or "spawn"; None is the default of multiprocessing.
        timeout: seconds to wait for a batch while nothing moves; then LoaderStalled says what everybody was doing. With
            prefetch=0 and no workers the batch is made in your own thread, which only `precompile.watch` can interrupt.

    A batch is yours: its memory is reused only after every tensor that looks at it is gone, so keeping all
    batches of an epoch is safe and merely allocates more. An exception in a thread or a worker is raised to the
    consumer. The order and the content of batches depend on nothing but the arguments, not on threads, prefetch or
    device. Workers seed the generators of torch, numpy and random for each batch, so their number does not matter.
    """

    def __init__(
        self,
        dataset: CompiledDataset | torch.utils.data.Subset[Any] | ResidentDataset,
        batch_size: int | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_frames: int | None = None,
        windows: Window | Mapping[str, Window] | None = None,
        collate: Any = None,
        device: str | torch.device | None = None,
        threads: int = 1,
        prefetch: int = 3,
        workers: int = 0,
        start_method: str | None = None,
        timeout: float | None = 600.0,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise TypeError(unknown_arguments(unknown))
        threads, prefetch = checked_integer("threads", threads, 1), checked_integer("prefetch", prefetch, 0)
        workers = checked_integer("workers", workers, 0)
        seed = checked_integer("seed", seed, 0)
        batch_size = None if batch_size is None else checked_integer("batch_size", batch_size, 1)
        batch_frames = None if batch_frames is None else checked_integer("batch_frames", batch_frames, 1)
        for name, given in (("shuffle", shuffle), ("batch_frames", batch_frames)):
            if sampler is not None and given:
                raise ValueError(f"sampler and {name} exclude each other: the sampler decides the order")
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, bool(drop_last)
        self.threads, self.prefetch, self.workers = threads, prefetch, workers
        self._how = How(windows, collate, device, seed, workers, start_method)
        self._patience = Patience(checked_timeout(timeout))
        self._fillings: weakref.WeakSet[Filling] = weakref.WeakSet()
        self._idle: list[_Lane] = [self._new_lane()]
        self._reads_all = sampler is None
        if batch_frames is not None:
            from precompile.loading.sampling.length_batches import LengthBatchSampler  # 10 ms that few need

            lengths_of = dataset.dataset if is_resident(dataset) else dataset
            sampler = LengthBatchSampler(
                lengths_of, batch_size=batch_size, batch_frames=batch_frames, shuffle=shuffle, seed=seed,
                drop_last=drop_last, rank=0, world_size=1,
            )  # fmt: skip
        elif getattr(sampler, "gives_batches", False) and batch_size is not None:
            raise ValueError(f"a {type(sampler).__name__} decides the batches: leave batch_size out")
        self.sampler = epoch_sampler(sampler, dataset, batch_size, shuffle=shuffle, seed=seed)
        self._gives_batches = batch_size is None or batch_frames is not None
        self._progress: tuple[Epoch, int] | None = None
        self._epoch_was_set = False

    def __len__(self) -> int:
        count = len(self.sampler)
        if self._gives_batches or self.batch_size is None:
            return count
        return number_of_batches(count, self.batch_size, self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration runs this epoch's order; what is left of it, if `load_state_dict` restored this epoch."""
        self.sampler.set_epoch(epoch)
        self._progress, self._epoch_was_set = None, True

    def state_dict(self) -> dict[str, Any]:
        """Where training is: after the batch that was given last. Small, of plain numbers (JSON)."""
        return self.sampler.state_dict() if self._progress is None else self.sampler.state(*self._progress)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on behind that batch. Raises ValueError when the state is of another epoch order."""
        self.sampler.load_state_dict(state)
        self._progress, self._epoch_was_set = None, False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_fillings"} | {"_idle": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _fillings=weakref.WeakSet())

    def __iter__(self) -> Iterator[Any]:
        if self._reads_all and (world_size := Ranks().current().world_size) > 1:
            sampler = (
                "LengthBatchSampler(dataset, batch_frames=…)" if self._gives_batches else "ShuffleSampler(dataset)"
            )
            warnings.warn(
                f"torch.distributed runs {world_size} processes and each will read all samples; give "
                f"sampler={sampler}, which splits them, or the same with rank=0, world_size=1, where all are meant",
                stacklevel=2,
            )
        epoch = self.sampler.begin()
        batches = self._batches(epoch)
        if not len(batches) and epoch.start and not self._epoch_was_set:  # restored at the end of an epoch
            epoch = self.sampler.begin()
            batches = self._batches(epoch)
        self._epoch_was_set = False
        self._progress = epoch, 0
        return self._epoch(epoch, batches)

    def watched_processes(self) -> list[tuple[str, int]]:
        """Name and process id of each worker that runs."""
        return [found for filling in list(self._fillings) for found in filling.processes()]

    def _batches(self, epoch: Epoch) -> Batches:
        return fixed_batches(epoch.order, self.batch_size, self.drop_last)

    def _epoch(self, epoch: Epoch, batches: Batches) -> Iterator[Any]:
        try:
            lane = self._idle.pop()  # a second iteration at the same time gets buffers of its own
        except IndexError:
            lane = self._new_lane()
        try:
            size = self.batch_size or (len(batches.batch(0)) if len(batches) else 1)
            per_call = lane.filling.batches_per_call(size)
            jobs = self._jobs(lane.filling, epoch, batches, per_call)
            consumed = 0
            with contextlib.closing(self._run(lane, jobs, per_call)) as filled:
                for job in filled:
                    for size, batch in zip(job.sizes, job.batches()):
                        consumed += 1 if self._gives_batches else size
                        self._progress = epoch, consumed
                        self._patience.num_batches += 1
                        yield batch
                        del batch
                    del job
        finally:
            self._idle.append(lane)

    def _run(self, lane: _Lane, jobs: Iterator[Job], per_call: int) -> Generator[Job, None, None]:
        ahead = self._ahead(per_call)
        match lane.filling.filled_by:
            case "threads":
                patience = None if self.workers else self._patience  # workers are waited for by their own
                return run_ahead(jobs, lane.threads, ahead=ahead, patience=patience)
            case "itself":
                return run_started(jobs, ahead=ahead)
            case "nobody":
                return run_ahead(jobs, lane.threads, ahead=0)

    def _new_lane(self) -> _Lane:
        filling = filling_for(self.dataset, self._how, self._patience)
        self._fillings.add(filling)
        return _Lane(filling, CopyThreads(self.threads))

    def _ahead(self, per_call: int) -> int:
        """Jobs in flight, each of several batches."""
        jobs = -(-self.prefetch // per_call)
        return max(jobs, self.threads, 2 if per_call > 1 else 1) + self.workers if self.prefetch else 0

    def _jobs(self, filling: Filling, epoch: Epoch, batches: Batches, per_call: int) -> Iterator[Job]:
        for first in range(0, len(batches), per_call):
            last = min(first + per_call, len(batches))
            positions, sizes = read_batches(batches, first, last)
            asking = filling.ask_for(functools.partial(positions_to_ask_for, batches, first, last))
            yield filling.plan(positions, sizes, epoch.number).after(asking)


@dataclass(frozen=True, slots=True)
class _Lane:
    """What one iteration at a time uses, and the next one again."""

    filling: Filling
    threads: CopyThreads
