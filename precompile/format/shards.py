"""All shards of a generation as one range of addresses, checked, read-only.

One range means that a record's place is one number, so a batch from any number of shards is one gather call,
and that no file descriptor stays open.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from precompile.errors import FormatError
from precompile.format.files import cannot_be_read, open_regular

_SHARD_ALIGNMENT = 1 << 21
"""Bytes; a huge page, so that the kernel may use large pages for every shard."""
_MAX_RANGE = 1 << 62
_MAP_FIXED = 0x10
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def open_checked(path: Path, num_bytes: int) -> int:
    """A read-only descriptor of a file that has exactly `num_bytes`. Raises FormatError when it does not.

    A map of a file that is shorter than believed dies with SIGBUS on the first read, hence before mapping.
    """
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        raise FormatError(f"{path}: the shard is missing; restore it or build again") from None
    found = os.fstat(descriptor).st_size
    if found != num_bytes:
        os.close(descriptor)
        raise FormatError(f"{path}: expected {num_bytes} bytes, found {found}; restore the shard or build again")
    return descriptor


class ShardMap:
    """The mapped shards.

    Read-only, safe across threads and fork, not picklable (pickle the dataset's path instead). The maps live
    until the last array that `view` or `window` gave out is gone.

    starts: int64 (shards,), the place of each shard's first byte; a record lies at `starts[shard] + offset`.
    window: uint8 (bytes,) over all shards, or None where the platform cannot map at chosen addresses. Bytes
        between two shards belong to no file: reading them ends the process.
    """

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int], *, one_range: bool = True) -> None:
        self.sizes = np.array(sizes, np.int64)
        steps = -(-self.sizes // _SHARD_ALIGNMENT) * _SHARD_ALIGNMENT
        self.starts = np.concatenate([[0], np.cumsum(steps)])[:-1].astype(np.int64)
        total = sum(steps.tolist())  # never wraps round, whatever sizes a manifest gives
        self.window: np.ndarray | None = None
        self._maps: list[np.ndarray] = []
        if one_range and os.name == "posix" and 0 < total < _MAX_RANGE:
            with contextlib.suppress(_NoRange):
                self.window = _map_one_range(paths, sizes, self.starts, total)
        if self.window is None:
            self._maps = [_map_alone(path, size) for path, size in zip(paths, sizes)]

    def view(self, place: int, length: int) -> np.ndarray:
        """The bytes at a place, a read-only uint8 (length,) without a copy. They must lie within one shard."""
        shard = int(self.starts.searchsorted(place, side="right")) - 1
        offset = place - int(self.starts[shard]) if shard >= 0 else -1
        if offset < 0 or length < 0 or offset + length > self.sizes[shard]:
            raise FormatError(f"a record at place {place} with {length} bytes lies outside of the shards")
        if self.window is None:
            return self._maps[shard][offset : offset + length]
        found = self.window[place : place + length]
        found.flags.writeable = False
        return found


class _NoRange(Exception):
    """The platform gave no range of addresses."""


class _Range:
    """Owns reserved addresses; arrays made from it keep it alive, and it unmaps when the last is gone."""

    def __init__(self, address: int, num_bytes: int, libc: ctypes.CDLL, base: int, reserved: int) -> None:
        # Writable only to numpy, so that torch.from_numpy does not warn; the pages themselves are read-only.
        self.__array_interface__ = {"shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}
        weakref.finalize(self, libc.munmap, base, reserved).atexit = False


def _libc() -> ctypes.CDLL:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    except (OSError, AttributeError) as error:
        raise _NoRange from error
    return libc


def _map_one_range(paths: Sequence[Path], sizes: Sequence[int], starts: np.ndarray, total: int) -> np.ndarray:
    libc = _libc()
    failed = (None, ctypes.c_void_p(-1).value)
    reserved = total + _SHARD_ALIGNMENT
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    base = libc.mmap(None, reserved, 0, flags, -1, 0)
    if base in failed:
        raise _NoRange
    address = -(-base // _SHARD_ALIGNMENT) * _SHARD_ALIGNMENT
    owner = _Range(address, total, libc, base, reserved)
    for path, size, start in zip(paths, sizes, starts.tolist()):
        descriptor = open_checked(path, size)
        try:
            got = libc.mmap(address + start, size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, descriptor, 0)
        finally:
            os.close(descriptor)
        if got in failed:
            raise _NoRange
    return np.asarray(owner)


def _map_alone(path: Path, size: int) -> np.ndarray:
    descriptor = open_checked(path, size)
    try:
        return np.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise cannot_be_read(path, error) from None
    finally:
        os.close(descriptor)
