"""Which filling reads a dataset in the way that a Loader's arguments ask for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from precompile.loading.dataset import CompiledDataset
from precompile.loading.fillings.filling import Filling, Positions
from precompile.loading.fillings.memory import MemoryFilling
from precompile.loading.fillings.resident import ResidentFilling
from precompile.loading.fillings.samples import BeginBatch, SampleFilling, TransformFilling, do_nothing
from precompile.loading.processes import activity
from precompile.loading.reading.batch_reader import BatchReader, Reading
from precompile.loading.reading.buffers import Memory, PrivateMemory
from precompile.loading.reading.collate import Pad
from precompile.loading.reading.windows import windows_by_field
from precompile.loading.sampling.subset import unwrap

if TYPE_CHECKING:
    from precompile.loading.devices.device import Mover
    from precompile.loading.devices.resident import ResidentDataset
    from precompile.loading.watching.patience import Patience


@dataclass(frozen=True, slots=True)
class How:
    """The Loader's arguments that decide what a batch is, and where it is made."""

    windows: Any = None
    collate: Any = None
    device: Any = None
    seed: int = 0
    workers: int = 0
    start_method: str | None = None


def filling_for(dataset: Any, how: How, patience: Patience) -> Filling:
    """What reads this dataset in this way. Raises TypeError or ValueError for arguments that do not fit it."""
    if is_resident(dataset):
        _check_resident(dataset, how)
        return ResidentFilling(dataset)
    mover = None if how.device is None else _mover(how.device)
    filling = _in_this_process(dataset, how, _DeviceMemory(mover) if mover and not how.workers else PrivateMemory())
    if how.workers:
        filling = _in_workers(dataset, how, patience, filling)
    if mover is None:
        return filling
    from precompile.loading.fillings.moved import MovedFilling

    return MovedFilling(filling, mover)


def _in_this_process(dataset: Any, how: How, memory: Memory, begin_batch: BeginBatch = do_nothing) -> Filling:
    compiled, subset = unwrap(dataset)
    collate = how.collate
    if collate is not None and not isinstance(collate, Pad) and not callable(collate):
        raise TypeError(f"collate must be Pad(...) or a callable that takes a list of samples, got {collate!r}")
    by_field = windows_by_field(how.windows, [compiled.schema[name] for name in compiled.field_names])
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
    if not by_sample:
        reading = Reading(by_field, collate or Pad(), how.seed)
        names, arrange = compiled.field_names, compiled.arrange
        reader = BatchReader(compiled.stored, names, arrange, reading=reading, make_buffers=memory.buffers)
        return MemoryFilling(compiled.stored, positions, reader)
    activity.begin()  # a stall, or a worker that dies, can then be told with the sample
    if collate is None and _is_plain(compiled) and not overrides:
        return TransformFilling(compiled, positions, memory, begin_batch=begin_batch)
    return SampleFilling(compiled, positions, collate or compiled.collate, begin_batch=begin_batch)


def _is_plain(dataset: CompiledDataset) -> bool:
    """Whether nothing but the transform makes its samples, and its batches, other than those that are stored."""
    kind = type(dataset)
    is_ours = (kind.__getitem__, kind.collate) == (CompiledDataset.__getitem__, CompiledDataset.collate)
    return is_ours and dataset.is_gathered


def _in_workers(dataset: Any, how: How, patience: Patience, filling: Filling) -> Filling:
    from precompile.loading.fillings.by_workers import WorkerFilling  # 30 ms that not everybody needs
    from precompile.loading.workers.seeding import seed_generators
    from precompile.loading.workers.team import Team
    from precompile.loading.workers.worker import Setup

    begin_batch = functools.partial(seed_generators, how.seed)
    make: Callable[[Memory], Filling] = functools.partial(_in_this_process, dataset, how, begin_batch=begin_batch)
    team = Team(how.workers, Setup(make), patience=patience, start_method=how.start_method)
    return WorkerFilling(team, filling)


def _check_resident(dataset: ResidentDataset, how: How) -> None:
    elsewhere = how.device is not None and torch.device(how.device).type != dataset.device.type
    options = (
        ("windows", how.windows is not None),
        ("collate", how.collate is not None),
        ("another device", elsewhere),
        ("workers", how.workers > 0),
    )
    given = [name for name, is_given in options if is_given]
    if given:
        raise ValueError(f"a dataset that to_tensors has put on {dataset.device} gives its samples as they are "
                         f"there: it takes no {' and no '.join(given)}")  # fmt: skip


class _DeviceMemory(PrivateMemory):
    """Buffers from which a device copies best."""

    def __init__(self, mover: Mover) -> None:
        self.buffers = mover.buffers  # type: ignore[method-assign,assignment]


def _mover(device: str | torch.device) -> Mover | None:
    """None where batches are to stay as they are."""
    from precompile.loading.devices.device import PlainMover, mover_for  # 10 ms that not everybody needs

    mover = mover_for(device)
    return None if isinstance(mover, PlainMover) and mover.device.type == "cpu" else mover


def is_resident(dataset: Any) -> TypeGuard[ResidentDataset]:
    """Whether it is one of `to_tensors`: it makes batches itself."""
    return hasattr(dataset, "batch")
