"""What tells a changed input from the one that was planned, without decoding it."""

from __future__ import annotations

import errno
import os
import stat
from array import array
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np
import xxhash

from precompile.errors import SourceError
from precompile.pipeline.storage import storage_error

STAT_FIELDS = ("size", "mtime_ns", "ctime_ns", "inode")
"""Of a file, links followed. Of an input that is bytes: their number, their XXH3-64 as an int64, and two zeros."""
MISSING = -1
"""The size of an input that does not exist, or is not a file; its other fields are 0."""

StatRow = tuple[int, int, int, int]
"""STAT_FIELDS."""

fields_of = attrgetter("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")
"""os.stat_result -> StatRow."""

_MISSING_ROW: StatRow = (MISSING, 0, 0, 0)
_NAMES_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


def stat_file(path: str | Path, *, missing_is_planned: bool) -> StatRow:
    """Raises SourceError for what is missing or not a file, unless that is planned; StorageError for all else."""
    try:
        found = os.stat(path)
    except OSError as error:
        if missing_is_planned and error.errno in _NAMES_NO_FILE:
            return _MISSING_ROW
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise SourceError(f"{path}: no such file") from None
        raise storage_error(error, f"cannot read {path}") from None
    if stat.S_ISREG(found.st_mode):
        row: StatRow = fields_of(found)
        return row
    if missing_is_planned:
        return _MISSING_ROW
    raise SourceError(f"{path}: expected a file, found something else; take it out of the source")


def stat_bytes(content: bytes) -> StatRow:
    """So that other content of the same length is another input."""
    return len(content), int.from_bytes(xxhash.xxh3_64_digest(content), "big", signed=True), 0, 0


def pack_stat(values: Sequence[int]) -> array[int]:
    """The fields of n inputs one after another as int64. Inodes of 2^63 and more, which are rare, wrap around."""
    try:
        return array("q", values)
    except OverflowError:
        return array("q", [(value + 2**63) % 2**64 - 2**63 for value in values])


def stat_array(packed: array[int]) -> np.ndarray:
    """int64 (n, 4), of the same memory."""
    return np.frombuffer(packed, np.int64).reshape(-1, len(STAT_FIELDS))
