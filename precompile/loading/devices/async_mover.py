"""Batches to a device by copies that run beside its work."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from precompile.loading.devices.copy_queue import CopyQueue, Event, check_process
from precompile.loading.devices.leaves import map_leaves
from precompile.loading.devices.pinned import PinnedBuffer, PinnedBuffers

_MAX_LEAD = 4
"""Received batches that the device need not have reached when another one is sent. The memory of batches that the
consumer dropped comes back only when the device has got past them: without a limit a loop that does not wait for its
device would fill it."""


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
        self._received: deque[Event] = deque()
        self._waiting = threading.Lock()

    def check_process(self) -> None:
        check_process(self._process, self.device)

    def buffers(self, num_bytes: int) -> PinnedBuffers:
        self.check_process()
        pool = PinnedBuffers(self._queue, num_bytes)
        with self._adding:
            self._pools = (*[known for known in self._pools if known() is not None], weakref.ref(pool))
        return pool

    def send(self, batch: Any) -> Copying:
        self.check_process()
        self._wait_for_the_consumer()
        used: list[PinnedBuffer] = []
        copies: list[torch.Tensor] = []
        tree = map_leaves(batch, torch.Tensor, lambda tensor: self._copy(tensor, used, copies))
        event = self._queue.record()
        for buffer in used:
            buffer.copies.append(event)
        return Copying(self, tree, copies, event)

    def arrived(self, copies: list[torch.Tensor], event: Event) -> None:
        """Order the consumer's stream behind the copies. Does not wait."""
        self.check_process()
        self._received.append(self._queue.mark())
        self._queue.wait(event)
        for copy in copies:
            self._queue.keep(copy)

    def _wait_for_the_consumer(self) -> None:
        with self._waiting:
            while len(self._received) > _MAX_LEAD:
                self._received.popleft().synchronize()

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
class Copying:
    """A batch whose copies were queued."""

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
