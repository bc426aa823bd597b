"""A flat shard: a 64-byte header, then records, each at a multiple of 64."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

import numpy as np

from precompile.format.schema import ALIGNMENT, align
from precompile.pipeline.storage import start_writeback

MAGIC = b"PCFLAT\r\n"
_HEADER = "<8sIIQQ"
_BLOCK_BYTES = 4 << 20
"""Blocks of this size, at multiples of it: the kernel then keeps the file in huge pages, which are read faster."""


def make(path: Path) -> FlatWriter:
    return FlatWriter(path)


class FlatWriter:
    """See ShardWriter. Plain writes, never a writable map: a full tmpfs is an error and not SIGBUS."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb", buffering=0)
        self._block = np.zeros(_BLOCK_BYTES, np.uint8)
        self._used = ALIGNMENT
        self._lengths: list[int] = []

    def append(self, record: np.ndarray) -> None:
        done = 0
        while done < len(record):
            part = record[done : done + _BLOCK_BYTES - self._used]
            self._block[self._used : self._used + len(part)] = part
            self._used += len(part)
            done += len(part)
            if self._used == _BLOCK_BYTES:
                self._write_block()
        padded = align(self._used)  # a whole block is a multiple of it, so the padding fits
        self._block[self._used : padded] = 0
        self._used = padded
        if self._used == _BLOCK_BYTES:
            self._write_block()
        self._lengths.append(len(record))

    def commit(self) -> np.ndarray:
        self._write_block()
        steps = np.array([align(length) for length in self._lengths], np.int64)
        pitch = int(steps[0]) if len(steps) and (steps == steps[0]).all() else 0
        header = struct.pack(_HEADER, MAGIC, 1, ALIGNMENT, len(steps), pitch)
        self._file.seek(0)
        self._file.write(header)
        os.fsync(self._file.fileno())
        self._file.close()
        return ALIGNMENT + np.cumsum(steps) - steps

    def _write_block(self) -> None:
        rest = self._block[: self._used].data
        while rest:
            rest = rest[self._file.write(rest) :]
        self._used = 0
        start_writeback(self._file.fileno())

    def abort(self) -> None:
        with contextlib.suppress(OSError):  # a full disk takes no flush either; the file is removed anyway
            self._file.close()
        self._path.unlink(missing_ok=True)
