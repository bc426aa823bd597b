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
_BUFFER_BYTES = 1 << 20


def make(path: Path) -> FlatWriter:
    return FlatWriter(path)


class FlatWriter:
    """See ShardWriter. Plain writes, never a writable map: a full tmpfs is an error and not SIGBUS."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb", buffering=_BUFFER_BYTES)
        self._file.write(bytes(ALIGNMENT))
        self._lengths: list[int] = []
        self._unsent_bytes = 0

    def append(self, record: np.ndarray) -> None:
        self._file.write(record.data)
        self._file.write(bytes(align(len(record)) - len(record)))
        self._lengths.append(len(record))
        self._unsent_bytes += len(record)
        if self._unsent_bytes >= _BUFFER_BYTES:
            self._file.flush()
            start_writeback(self._file.fileno())
            self._unsent_bytes = 0

    def commit(self) -> np.ndarray:
        steps = np.array([align(length) for length in self._lengths], np.int64)
        pitch = int(steps[0]) if len(steps) and (steps == steps[0]).all() else 0
        header = struct.pack(_HEADER, MAGIC, 1, ALIGNMENT, len(steps), pitch)
        self._file.seek(0)
        self._file.write(header)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return ALIGNMENT + np.cumsum(steps) - steps

    def abort(self) -> None:
        with contextlib.suppress(OSError):  # a full disk takes no flush either; the file is removed anyway
            self._file.close()
        self._path.unlink(missing_ok=True)
