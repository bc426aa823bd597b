"""Batches from host memory to the device that trains, ahead of their use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from precompile.loading.devices.async_mover import AsyncMover
from precompile.loading.devices.copy_queue import CudaQueue
from precompile.loading.devices.leaves import map_leaves
from precompile.loading.reading.buffers import BufferPool, HostBuffers


class Sent(Protocol):
    """A batch on its way."""

    def receive(self) -> Any:
        """The batch on the device, in the same form; for the thread, and on the stream, that will use it."""
        ...


class Mover(Protocol):
    """Brings batches to one device."""

    device: torch.device

    def check_process(self) -> None:
        """Raise RuntimeError in a forked process that cannot use the device; before any buffer is touched there."""
        ...

    def buffers(self, num_bytes: int) -> HostBuffers:
        """Host memory from which the device copies best."""
        ...

    def send(self, batch: Any) -> Sent:
        """Start to move a batch; in any thread.

        Tensors in dicts, tuples, NamedTuples and lists are moved, everything else (text, numbers) is left as it is.
        The batch may lie in `buffers` or anywhere. Its buffers are free when it was let go of and the copies have run.
        """
        ...


def mover_for(device: str | torch.device) -> Mover:
    """The Mover to a device. Raises as usable_device does."""
    found = usable_device(device)
    return AsyncMover(CudaQueue(found)) if found.type == "cuda" else PlainMover(found)


def usable_device(device: str | torch.device) -> torch.device:
    """The device that is meant, with its number: `cuda` is the current one of the calling thread.

    Raises ValueError for something that is no device, RuntimeError for one that cannot be used here.
    """
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be one that torch knows, such as 'cpu', 'cuda', 'cuda:1' or 'mps', "
                         f"got device={device!r}") from error  # fmt: skip
    if wanted.type == "meta":
        raise ValueError("device must hold data, got device='meta'; choose 'cpu', 'cuda', 'mps' or another")
    if wanted.type == "cpu":
        return torch.device("cpu")
    try:
        return torch.empty(1, device=wanted).device
    except Exception as error:  # each backend has its own way to say that it is missing
        reason = str(error).strip().split("\n")[0]
        raise RuntimeError(f"device={str(device)!r} cannot be used here: {reason}") from error


class PlainMover:
    """Leaves batches alone on the CPU; for other devices copies when a batch is received, in the consumer's thread,
    since not every backend can be used by two threads at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def check_process(self) -> None:
        pass

    def buffers(self, num_bytes: int) -> HostBuffers:
        return BufferPool(num_bytes)

    def send(self, batch: Any) -> Sent:
        return _Waiting(batch, self.device)


@dataclass(frozen=True, slots=True)
class _Waiting:
    batch: Any
    device: torch.device

    def receive(self) -> Any:
        if self.device.type == "cpu":
            return self.batch
        return map_leaves(self.batch, torch.Tensor, lambda tensor: tensor.to(self.device))
