"""Aligned, huge-page-advised buffers that are reused only when nobody looks at them any more."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from typing import Any, Protocol

import numpy as np

from precompile.format.schema import ALIGNMENT

_HUGE_PAGE = 1 << 21


def aligned_buffer(num_bytes: int) -> np.ndarray:
    """A zeroed, writable uint8 (num_bytes,) at an address that is a multiple of 64; large ones in huge pages."""
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    alignment = _HUGE_PAGE if num_bytes >= _HUGE_PAGE else ALIGNMENT
    memory = mmap.mmap(-1, max(num_bytes, 1) + alignment, **flags)
    if num_bytes >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(memory, np.uint8).__array_interface__["data"][0] % alignment
    # Not a slice of an array: numpy would let slices of it refer to that array, and BufferPool would not see them.
    return np.frombuffer(memory, np.uint8, num_bytes, start)


def fresh_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Zeros of memory of its own; in huge pages when large, which spares most of the time for page faults."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _HUGE_PAGE:
        return np.zeros(shape, dtype)
    return aligned_buffer(num_bytes).view(dtype).reshape(shape)


_MAX_KNOWN = 24
"""Buffers of a pool: more are held by a consumer who keeps batches, and their memory goes with these."""


class HostBuffers(Protocol):
    """Reusable memory of one size. Used by one thread."""

    def take(self) -> np.ndarray:
        """A uint8 (num_bytes,) array that nobody looks at, and that nothing is copied from."""
        ...


class BufferPool:
    """Buffers of one size. Used by one thread.

    A buffer that `take` returns is free again when every array and tensor made from it is gone, which
    the pool sees by the buffer's reference count: so hand out a fresh `torch.from_numpy(buffer)` each time.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._buffers: list[np.ndarray] = []
        self._next = 0
        probe = [np.empty(0, np.uint8)]
        self._unused = sys.getrefcount(probe[0])

    def __len__(self) -> int:
        return len(self._buffers)

    def take(self) -> np.ndarray:
        """A buffer nobody holds, the one unused for longest if there are several; a new one if there is none."""
        for step in range(len(self._buffers)):
            position = (self._next + step) % len(self._buffers)
            if sys.getrefcount(self._buffers[position]) == self._unused:
                self._next = position + 1
                return self._buffers[position]
        buffer = aligned_buffer(self.num_bytes)
        self._buffers.append(buffer)
        if len(self._buffers) > _MAX_KNOWN:
            del self._buffers[0]
            self._next = 0
        return buffer


class Memory(Protocol):
    """Where batches are made. Used by one thread."""

    def buffers(self, num_bytes: int) -> HostBuffers:
        """Reusable buffers of this size."""
        ...

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """A new C-contiguous array, whatever it holds."""
        ...


class PrivateMemory:
    """That of this process alone."""

    def buffers(self, num_bytes: int) -> BufferPool:
        return BufferPool(num_bytes)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        return fresh_array(shape, dtype)
