"""Batches from host memory to the device that trains, ahead of their use."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from precompile.loading.buffers import BufferPool, HostBuffers
from precompile.loading.copy_queue import CopyQueue, CudaQueue, Event, check_process
from precompile.loading.pinned import PinnedBuffer, PinnedBuffers

_MAX_LEAD = 4
"""Batches by which the consumer's thread may be ahead of its device. The memory of batches that it has dropped
comes back only when the device has got past them, so without a limit a fast loop of small steps fills the device."""


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
    """The Mover to a device; `cuda` is the current one of the calling thread.

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
        return PlainMover(wanted)
    try:
        found = torch.empty(1, device=wanted).device
    except Exception as error:  # each backend has its own way to say that it is missing
        reason = str(error).strip().split("\n")[0]
        raise RuntimeError(f"device={str(device)!r} cannot be used here: {reason}") from error
    return AsyncMover(CudaQueue(found)) if found.type == "cuda" else PlainMover(found)


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


class AsyncMover:
    """Copies by a queue of the device, one copy a tensor, straight from pinned buffers.

    What the consumer receives is ordered behind its copy on the consumer's stream, and never written to again.
    """

    def __init__(self, queue: CopyQueue) -> None:
        self.device = queue.device
        self._queue = queue
        self._process = os.getpid()
        self._adding = threading.Lock()
        self._pools: tuple[weakref.ref[PinnedBuffers], ...] = ()
        self._lead: deque[Event] = deque()

    def __reduce__(self) -> tuple[Callable[..., Mover], tuple[torch.device]]:
        return mover_for, (self.device,)

    def check_process(self) -> None:
        check_process(self._process, self.device)

    def buffers(self, num_bytes: int) -> HostBuffers:
        self.check_process()
        pool = PinnedBuffers(self._queue, num_bytes)
        with self._adding:
            self._pools = (*[known for known in self._pools if known() is not None], weakref.ref(pool))
        return pool

    def send(self, batch: Any) -> Sent:
        self.check_process()
        used: list[PinnedBuffer] = []
        copies: list[torch.Tensor] = []
        tree = map_leaves(batch, torch.Tensor, lambda tensor: self._copy(tensor, used, copies))
        event = self._queue.record()
        for buffer in used:
            buffer.copies.append(event)
        return _Copying(self, tree, copies, event)

    def arrived(self, copies: list[torch.Tensor], event: Event) -> None:
        """Order the consumer's stream behind the copies, and wait if it is too far behind the calling thread."""
        self.check_process()
        self._lead.append(self._queue.mark())
        if len(self._lead) > _MAX_LEAD:
            self._lead.popleft().synchronize()
        self._queue.wait(event)
        for copy in copies:
            self._queue.keep(copy)

    def _copy(self, tensor: torch.Tensor, used: list[PinnedBuffer], copies: list[torch.Tensor]) -> Any:
        if not _is_plain(tensor):
            return _Late(tensor)
        if not _is_dense(tensor):
            tensor = tensor.contiguous()
        copy = self._queue.copy(self._pinned(tensor, used))
        copies.append(copy)
        return copy.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def _pinned(self, tensor: torch.Tensor, used: list[PinnedBuffer]) -> torch.Tensor:
        """The bytes of a dense tensor in pinned memory: where they are, or copied there."""
        num_bytes = tensor.numel() * tensor.element_size()
        for known in self._pools:
            pool = known()
            if pool is not None and (found := pool.find(tensor)):
                buffer, start = found
                used.append(buffer)
                return buffer.memory[start : start + num_bytes]
        return self._queue.pinned(num_bytes).copy_(tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8))


@dataclass(frozen=True, slots=True)
class _Copying:
    mover: AsyncMover
    tree: Any
    copies: list[torch.Tensor]
    event: Event

    def receive(self) -> Any:
        self.mover.arrived(self.copies, self.event)
        return map_leaves(self.tree, _Late, lambda late: late.tensor.to(self.mover.device))


@dataclass(frozen=True, slots=True)
class _Late:
    """A tensor that is more than its bytes, so torch moves it, when it is received."""

    tensor: torch.Tensor


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is bytes in host memory with a shape and strides, and nothing else."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested)
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one run of memory, in whatever order of the axes."""
    axes = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    return tensor.permute(axes).is_contiguous()


def map_leaves(tree: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """A batch with `function` applied to what is of that kind, in dicts, tuples, NamedTuples and lists of any depth."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, dict):
        return {name: map_leaves(value, kind, function) for name, value in tree.items()}
    if isinstance(tree, tuple):
        values = [map_leaves(value, kind, function) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    if isinstance(tree, list):
        return [map_leaves(value, kind, function) for value in tree]
    return tree
