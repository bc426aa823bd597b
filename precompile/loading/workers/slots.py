"""A worker's side of shared memory: where batches are made, so that only their places have to be sent."""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from precompile.format.schema import align
from precompile.loading.reading.buffers import aligned_buffer, fresh_array
from precompile.loading.workers.shared_file import SharedFile, new_descriptor

_RECENT = 16
_SPARE_BYTES = 4 << 20


class Slot:
    """One piece of shared memory, filled from its front."""

    def __init__(self, number: int, num_bytes: int) -> None:
        self.number = number
        self._descriptor: int | None = new_descriptor(num_bytes)
        self.file = SharedFile(os.dup(self._descriptor), num_bytes)
        self.num_bytes = num_bytes
        self.used = 0

    @property
    def is_known(self) -> bool:
        """Whether the parent has it."""
        return self._descriptor is None

    @contextlib.contextmanager
    def descriptor(self) -> Iterator[int]:
        """For the parent, once."""
        assert self._descriptor is not None
        yield self._descriptor
        self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def take(self, num_bytes: int) -> np.ndarray | None:
        """The next bytes, uint8 (num_bytes,), at a multiple of 64; None where they do not fit."""
        start = align(self.used)
        if start + num_bytes > self.num_bytes:
            return None
        self.used = start + num_bytes
        return self.file.array[start : start + num_bytes]

    def place_of(self, address: int, num_bytes: int) -> int | None:
        """Where bytes at an address of this process lie in the slot; None when they lie elsewhere."""
        start = address - self.file.array.ctypes.data
        return start if 0 <= start <= start + num_bytes <= self.num_bytes else None


class SlotMemory:
    """See Memory. Batches are made in `slot`, or, where that is too small, in private memory, and moved.

    The parent says which slots its consumer has let go of; a slot that a transform has kept a sample of is not
    used again either.
    """

    def __init__(self) -> None:
        self.slot: Slot | None = None
        self._slots: dict[int, Slot] = {}
        self._free: list[int] = []
        self._count = 0
        self._private: list[np.ndarray] = []
        """What did not fit the slot of this batch."""
        self._asked = 0
        """Bytes of this batch."""
        self._recent: deque[int] = deque(maxlen=_RECENT)
        """Bytes of the batches before."""

    def begin(self, freed: Iterable[int], lost: Iterable[int]) -> list[int]:
        """A new batch; of `freed` and `lost` see Task. Returns slots that are given up: too small, or far too large."""
        for number in lost:
            self._slots.pop(number).close()
        if self._asked:
            self._recent.append(self._asked)
        self._asked, self._private = 0, []
        self._free += freed
        most = self._usual()
        given_up = [number for number in self._free if not _fits(self._slots[number].num_bytes, most)]
        for number in given_up:
            self._free.remove(number)
            self._slots.pop(number).close()
        self.slot = next((slot for slot in map(self._slots.__getitem__, self._free) if not slot.file.is_held), None)
        if self.slot is not None:
            self._free.remove(self.slot.number)
            self.slot.used = 0
        elif most:
            self.slot = self._new_slot(most)
        return given_up

    def _usual(self) -> int:
        """Bytes of the second largest of the last batches: one that is much larger than all others is moved instead."""
        return max(sorted(self._recent)[-2:-1] or self._recent, default=0)

    def take(self, num_bytes: int) -> np.ndarray:
        """uint8 (num_bytes,), in the slot if it has room."""
        self.ask(num_bytes)
        found = self.slot.take(num_bytes) if self.slot is not None else None
        if found is None:
            found = aligned_buffer(num_bytes)
            self._private.append(found)
        return found

    def ask(self, num_bytes: int) -> None:
        """Have room for so many bytes more in the slots of later batches."""
        self._asked = align(self._asked) + num_bytes

    def has_given(self, address: int, num_bytes: int) -> bool:
        """Whether these bytes were taken here, for this batch."""
        if self.slot is not None and self.slot.place_of(address, num_bytes) is not None:
            return True
        return any(0 <= address - array.ctypes.data <= len(array) - num_bytes for array in self._private)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        num_bytes = math.prod(shape) * dtype.itemsize
        return self.take(num_bytes).view(dtype).reshape(shape) if num_bytes else fresh_array(shape, dtype)

    def buffers(self, num_bytes: int) -> _SlotBuffers:
        return _SlotBuffers(self, num_bytes)

    def give_back(self) -> None:
        """The slot of this batch is free again: nothing in it is sent."""
        if self.slot is not None:
            self._free.append(self.slot.number)
            self.slot = None

    def move_to_larger(self, num_bytes: int) -> Slot:
        """Another slot for this batch; the one it had is free."""
        self.give_back()
        self.slot = self._new_slot(num_bytes)
        return self.slot

    def _new_slot(self, num_bytes: int) -> Slot:
        self._count += 1
        slot = self._slots[self._count] = Slot(self._count, max(num_bytes, 1))
        return slot


def _fits(num_bytes: int, most: int) -> bool:
    """One batch that was much larger than all others does not stay in memory for ever."""
    return most <= num_bytes <= 2 * most + _SPARE_BYTES


class _SlotBuffers:
    """See HostBuffers."""

    def __init__(self, memory: SlotMemory, num_bytes: int) -> None:
        self._memory, self._num_bytes = memory, num_bytes

    def take(self) -> np.ndarray:
        return self._memory.take(self._num_bytes)
