"""Memory that two processes see. It has no name: the kernel takes it back when nobody has it any more."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile

import numpy as np

from precompile.errors import NoRoomError

_MADV_POPULATE_WRITE = 23
"""Since Linux 5.14: all pages at once, not one fault a page."""


class SharedFile:
    """A piece of shared memory, mapped. Free when this object and all arrays and tensors made from `array` are gone.

    array: uint8 (num_bytes,), writable, at a multiple of a page.
    """

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        """Takes over the descriptor."""
        try:
            memory = mmap.mmap(descriptor, num_bytes)
        finally:
            os.close(descriptor)
        for advice in (getattr(mmap, "MADV_HUGEPAGE", None), _MADV_POPULATE_WRITE):
            if advice is not None and sys.platform == "linux":
                with contextlib.suppress(OSError, ValueError):
                    memory.madvise(advice)
        self.array = np.frombuffer(memory, np.uint8)
        self._unused = self._references()

    def _references(self) -> int:
        return sys.getrefcount(self.array)

    @property
    def is_held(self) -> bool:
        """Whether an array or a tensor of this process looks at it."""
        return self._references() > self._unused


def new_descriptor(num_bytes: int) -> int:
    """The descriptor of a file without a name, in memory, whose bytes are reserved. Raises NoRoomError.

    Not in /dev/shm, which is small in many containers; only the memory limit counts.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("precompile-batch", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, num_bytes)
        else:
            os.ftruncate(descriptor, num_bytes)
    except OSError as error:
        os.close(descriptor)
        raise NoRoomError(
            f"a worker's batch needs {num_bytes / 1e6:,.1f} MB of shared memory, which could not be had: "
            f"{error.strerror}; use fewer workers, a smaller batch or prefetch, or more memory"
        ) from error
    return descriptor
