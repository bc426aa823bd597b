"""Memory that two processes see. It has no name: the kernel takes it back when nobody has it any more."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
import weakref

import numpy as np

from precompile.errors import NoRoomError

_MADV_POPULATE_WRITE = 23
"""Since Linux 5.14: all pages at once, not one fault a page."""
_FAILED = (None, ctypes.c_void_p(-1).value)


class SharedFile:
    """A piece of shared memory, mapped. Free when this object and all arrays and tensors made from `array` are gone.

    array: uint8 (num_bytes,), writable, at a multiple of a page.
    """

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        """Takes over the descriptor, and closes it: a consumer may keep more batches than a process may open files."""
        try:
            self.array = np.asarray(_Map(descriptor, num_bytes))
        finally:
            os.close(descriptor)
        self._unused = self._references()

    def _references(self) -> int:
        return sys.getrefcount(self.array)

    @property
    def is_held(self) -> bool:
        """Whether an array or a tensor of this process looks at it."""
        return self._references() > self._unused


class _Map:
    """Owns the addresses; arrays made from it keep it alive. mmap.mmap would keep a descriptor of its own."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        libc = _libc()
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = libc.mmap(None, num_bytes, access, mmap.MAP_SHARED, descriptor, 0)
        if address in _FAILED:
            raise NoRoomError(
                f"{num_bytes / 1e6:,.1f} MB of a batch cannot be mapped: {os.strerror(ctypes.get_errno())}"
            )
        weakref.finalize(self, libc.munmap, address, num_bytes).atexit = False
        if sys.platform == "linux":
            libc.madvise(address, num_bytes, _MADV_POPULATE_WRITE)
        self.__array_interface__ = {"shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def new_descriptor(num_bytes: int) -> int:
    """The descriptor of a file without a name, in memory, whose bytes are reserved. Raises NoRoomError.

    Not in /dev/shm, which is small in many containers; only the memory limit counts.
    """
    descriptor = -1
    try:
        descriptor = _unnamed()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, num_bytes)
        else:
            os.ftruncate(descriptor, num_bytes)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise NoRoomError(
            f"a worker's batch needs {num_bytes / 1e6:,.1f} MB of shared memory, which could not be had: "
            f"{error.strerror}; use fewer workers, a smaller batch or prefetch, or more memory"
        ) from error
    return descriptor


def _unnamed() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("precompile-batch", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
