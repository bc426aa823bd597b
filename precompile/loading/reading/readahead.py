"""Asks the disk for records before they are read, as long as they are not in memory."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from precompile import machine
from precompile.format.stored import Stored

_PIECE_BYTES = (128 << 10, 4 << 20)
"""Least and most for one piece of advice. The kernel reads no more than its read-ahead window, 128 KiB by default."""
_JOIN_BYTES = 32 << 10
"""Gaps up to here are read as well: one longer read is faster than two."""
_SAMPLED = 8
"""Records that are looked at to see whether a batch is in memory."""
_MAX_SKIPPED = 64
_MAX_RANGES = 1024  # of one call: IOV_MAX
_PROCESS_MADVISE = 440  # the number of the system call, the same on all architectures since Linux 5.10


class ReadAhead:
    """For one Loader. `plan` is called by one thread, what it returns by any.

    Advice costs some microseconds a record even when it is not needed, so a few records of each batch are
    looked at first, and after batches that were in memory ever fewer batches are. Of files of other users the kernel
    does not tell what is in memory; then every record is asked for once, and again only when not all can stay.
    """

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._advice = _advice() if stored.shards.window is not None else None
        self._to_skip, self._skipped = 0, 0
        self._piece_bytes = _piece_bytes(stored.shard_paths[:1])
        self._is_told = self._advice is None or all(map(_is_told_of, stored.shard_paths[:1]))
        self._unasked = stored.manifest.count if self._fits_memory() else math.inf

    def _fits_memory(self) -> bool:
        return self._is_told or int(self._stored.shards.sizes.sum()) < machine.memory().available_bytes / 2

    def plan(self, soon: Callable[[], np.ndarray]) -> Callable[[], None] | None:
        """`soon` gives int64 (n,) sample numbers -> what asks the disk for them; None when there is no need to."""
        if self._advice is None:
            return None
        if self._to_skip:
            self._to_skip -= 1
            return None
        if not self._is_told and self._unasked <= 0:
            return None
        numbers = soon()
        self._unasked -= len(numbers)
        if not numbers.size:
            return None
        places, lengths = self._stored.extents(numbers)
        assert self._stored.shards.window is not None
        begins = places + self._stored.shards.window.ctypes.data
        return lambda: self._ask(begins, begins + lengths)

    def _ask(self, begins: np.ndarray, ends: np.ndarray) -> None:
        assert self._advice is not None
        sampled = np.linspace(0, len(begins) - 1, min(_SAMPLED, len(begins)), dtype=np.int64)
        if self._is_told and self._advice.are_resident(begins[sampled], ends[sampled]):
            self._skipped = self._to_skip = min(2 * self._skipped + 1, _MAX_SKIPPED)
            return
        self._skipped = self._to_skip = 0
        self._advice.will_need(pieces(begins, ends, self._piece_bytes))


def pieces(begins: np.ndarray, ends: np.ndarray, piece_bytes: int) -> np.ndarray:
    """Ranges of addresses, int64 (n,) each -> uint64 (m, 2), address and bytes of whole pages; joined, then cut."""
    order = np.argsort(begins)
    begins = begins[order] // mmap.PAGESIZE * mmap.PAGESIZE
    ends = np.maximum.accumulate(-(-ends[order] // mmap.PAGESIZE) * mmap.PAGESIZE)
    is_first = np.ones(len(begins), bool)
    is_first[1:] = begins[1:] > ends[:-1] + _JOIN_BYTES
    begins = begins[is_first]
    ends = ends[np.append(np.flatnonzero(is_first)[1:] - 1, len(ends) - 1)]
    counts = -(-(ends - begins) // piece_bytes)
    step = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(begins, counts) + step * piece_bytes
    return np.stack([starts, np.minimum(np.repeat(ends, counts) - starts, piece_bytes)], axis=1).astype(np.uint64)


class _Advice:
    """What the kernel is asked and told, by libc."""

    def __init__(self, libc: ctypes.CDLL, madvise: Callable[[int, int, int], int]) -> None:
        self._libc, self._madvise = libc, madvise

    def are_resident(self, begins: np.ndarray, ends: np.ndarray) -> bool:
        for begin, end in zip(begins.tolist(), ends.tolist()):
            start = begin // mmap.PAGESIZE * mmap.PAGESIZE
            flags = ctypes.create_string_buffer(-(-(end - start) // mmap.PAGESIZE))
            if self._libc.mincore(start, end - start, flags) == 0 and not all(flag & 1 for flag in flags.raw):
                return False
        return True

    def will_need(self, ranges: np.ndarray) -> None:
        """ranges: uint64 (n, 2), address and bytes. In few calls, where the kernel has one for many."""
        for first in range(0, len(ranges), _MAX_RANGES):
            part = np.ascontiguousarray(ranges[first : first + _MAX_RANGES])
            if not self._at_once(part):
                for start, size in part.tolist():
                    self._madvise(start, size, mmap.MADV_WILLNEED)

    def _at_once(self, ranges: np.ndarray) -> bool:
        try:
            process = os.pidfd_open(os.getpid())
        except (OSError, AttributeError):
            return False
        try:
            address, count = ctypes.c_void_p(ranges.ctypes.data), ctypes.c_size_t(len(ranges))
            return bool(self._libc.syscall(_PROCESS_MADVISE, process, address, count, mmap.MADV_WILLNEED, 0) >= 0)
        finally:
            os.close(process)


def _piece_bytes(paths: list[Path]) -> int:
    """The read-ahead window of the file system that holds these files."""
    least, most = _PIECE_BYTES
    try:
        device = os.stat(paths[0]).st_dev
        window = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
        return min(max(int(window.read_text()) << 10, least), most)
    except (OSError, ValueError, IndexError, AttributeError):
        return least


def _is_told_of(path: Path) -> bool:
    """Whether mincore tells the truth: for the owner, and who may write (mm/mincore.c, since Linux 5.2)."""
    try:
        return os.stat(path).st_uid == os.geteuid() or os.access(path, os.W_OK)
    except (OSError, AttributeError):
        return False


def _advice() -> _Advice | None:
    """None where the platform has none of this."""
    if not hasattr(mmap, "MADV_WILLNEED"):
        return None
    try:
        libc = ctypes.CDLL(None)
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
        # PyDLL keeps the GIL: hundreds of calls that each wait for it beside a busy consumer would take seconds.
        madvise = ctypes.PyDLL(None).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    except (OSError, AttributeError):
        return None
    return _Advice(libc, madvise)
