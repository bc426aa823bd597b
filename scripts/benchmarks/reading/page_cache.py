"""Pages of files in memory: dropping them, and seeing that they are gone."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reading.question import CannotMeasure

_STILL_THERE = 0.01
"""The share of pages that may remain."""


def drop_pages(files: Sequence[Path]) -> None:
    """Make reads of files go to the disk. Raises CannotMeasure when pages stay: files on tmpfs, or still mapped."""
    if not hasattr(os, "posix_fadvise"):
        raise CannotMeasure("the system must have posix_fadvise")
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    there, pages = (sum(counts) for counts in zip(*map(resident_pages, files)))
    if there > _STILL_THERE * pages:
        raise CannotMeasure(f"{there:,} of {pages:,} pages of {files[0].parent} stay in memory; choose --dir on a disk")


def resident_pages(path: Path) -> tuple[int, int]:
    """How many pages of a file are in memory, and how many it has."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        content = np.frombuffer(mapped, np.uint8)
        state = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (content, state)]
        failed = libc.mincore(pointers[0], ctypes.c_size_t(len(mapped)), pointers[1])
        del content
    if failed:
        raise CannotMeasure(f"{path}: mincore failed: {os.strerror(ctypes.get_errno())}")
    return int((state & 1).sum()), len(state)
