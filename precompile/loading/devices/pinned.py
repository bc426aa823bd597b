"""Pinned buffers, reused when nobody holds them and no copy reads them any more."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

import numpy as np
import torch

from precompile.loading.devices.copy_queue import CopyQueue, Event, check_process

_MAX_WAITING = 2
"""Buffers that only wait for their copy: one that is being copied, one that comes next. More would not be faster."""


@dataclass(slots=True, eq=False)
class PinnedBuffer:
    """Pinned memory, and what is known of its use."""

    memory: torch.Tensor
    """uint8 (num_bytes,), pinned."""
    array: np.ndarray = field(init=False)
    """The same memory; every view of it holds a reference to this object."""
    address: int = field(init=False)
    copies: list[Event] = field(default_factory=list)
    """The ends of the copies from it."""
    taken: int = 0
    """Which `take` of the pool gave it last."""

    def __post_init__(self) -> None:
        self.array = self.memory.numpy()
        self.address = self.memory.data_ptr()

    @property
    def references(self) -> int:
        return sys.getrefcount(self.array)


class PinnedBuffers:
    """Pinned buffers of one size. `take` is called by one thread, `find` by any.

    A buffer is free again when every array and tensor made from it is gone, as in BufferPool, and its last copy has
    run. While two or more wait for nothing but their copy, `take` waits for the oldest, so a device slower than
    the reading does not make their number grow.
    """

    def __init__(self, queue: CopyQueue, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._queue = queue
        self._process = os.getpid()
        self._buffers: list[PinnedBuffer] = []
        self._num_taken = 0
        self._unheld = PinnedBuffer(torch.empty(0, dtype=torch.uint8, device="cpu")).references

    def __len__(self) -> int:
        return len(self._buffers)

    def take(self) -> np.ndarray:
        """A uint8 (num_bytes,) array that nobody looks at and nothing is copied from.

        Raises RuntimeError in a forked process.
        """
        check_process(self._process, self._queue.device)
        buffer = self._free()
        if buffer is None:
            buffer = PinnedBuffer(self._queue.pinned(self.num_bytes))
            self._buffers.append(buffer)
        self._num_taken += 1
        buffer.taken = self._num_taken
        buffer.copies.clear()
        return buffer.array

    def find(self, tensor: torch.Tensor) -> tuple[PinnedBuffer, int] | None:
        """The buffer in which a tensor begins, and at which byte."""
        address = tensor.data_ptr()
        for buffer in self._buffers:
            if buffer.address <= address < buffer.address + self.num_bytes:
                return buffer, address - buffer.address
        return None

    def _free(self) -> PinnedBuffer | None:
        unheld = [buffer for buffer in self._buffers if buffer.references == self._unheld]
        unheld.sort(key=lambda buffer: buffer.taken)
        for buffer in unheld:
            if all(event.query() for event in buffer.copies):
                return buffer
        if len(unheld) < _MAX_WAITING:
            return None
        for event in unheld[0].copies:
            event.synchronize()
        return unheld[0]
