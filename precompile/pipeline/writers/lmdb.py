"""An LMDB shard: written by LMDB, readable by any LMDB tool, and laid out so that training reads it by map.

LMDB keeps a large value in one run of pages, 16 bytes into the first. With a 48-byte header before the records,
the payload starts at a multiple of 64 of the file, and so of the map.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from precompile.errors import FormatError
from precompile.format.schema import ALIGNMENT, align
from precompile.pipeline.storage import start_writeback
from precompile.pipeline.writers._lmdb_walk import value_offsets

MAGIC = b"PCLM"
HEADER_BYTES = 48
_HEADER = "<4sIQQQQ8x"
PACK_BELOW_BYTES = 64_000
"""Smaller records share a value."""
PACK_BYTES = 256_000
MIN_VALUE_BYTES = 16_896
"""Values of at least this size never lie inside a leaf page, at any page size LMDB knows."""
_TRANSACTION_BYTES = 2 << 20
_MAP_STEP_BYTES = 64 << 20
_SLACK_BYTES = 16 << 20
"""For rounding to pages (of up to 64 kB), the tree, and pages that a transaction copies."""


def make(path: Path) -> LmdbWriter:
    return LmdbWriter(path)


class LmdbWriter:
    """See ShardWriter.

    Growth of the map and size of transactions are functions of the records alone, so files are byte-identical.
    No writemap: a full disk is an error, not SIGBUS, and the file is never larger than its content.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map_bytes = _MAP_STEP_BYTES
        path.open("xb").close()
        try:
            self._env: lmdb.Environment | None = _open(path, map_size=self._map_bytes)
        except lmdb.Error as error:
            path.unlink()
            raise _as_os_error(error, path) from None
        self._descriptor = os.open(path, os.O_RDONLY)
        self._transaction: lmdb.Transaction | None = None
        self._room_bytes = 0
        self._value = np.zeros(0, np.uint8)  # reused: fresh memory for each value costs more than copying it
        self._pack: list[np.ndarray] = []
        self._pack_bytes = 0
        self._within: list[int] = []  # each record's offset in its value
        self._counts: list[int] = []  # records of each value

    def append(self, record: np.ndarray) -> None:
        if self._pack and (len(record) >= PACK_BELOW_BYTES or self._pack_bytes + len(record) > PACK_BYTES):
            self._close_pack()
        self._pack.append(record)
        self._pack_bytes += align(len(record))
        if len(record) >= PACK_BELOW_BYTES:
            self._close_pack()

    def _close_pack(self) -> None:
        first_slot = len(self._within)
        num_bytes = _value_bytes(self._pack)
        if num_bytes > len(self._value):
            self._value = np.zeros(num_bytes, np.uint8)
        value = self._value[:num_bytes]
        self._within += _fill_value(value, self._pack, first_slot)
        self._counts.append(len(self._pack))
        self._pack, self._pack_bytes = [], 0
        self._put(first_slot.to_bytes(8, "big"), value)

    def _put(self, key: bytes, value: np.ndarray) -> None:
        try:
            if len(value) > self._room_bytes:
                self._end_transaction()
            if self._transaction is None:
                self._transaction = self._begin(len(value))
            self._transaction.put(key, value.data, append=True)
            self._room_bytes -= len(value)
            if self._room_bytes <= 0:
                self._end_transaction()
        except lmdb.Error as error:
            raise _as_os_error(error, self._path) from None

    def _begin(self, first_bytes: int) -> lmdb.Transaction:
        """A transaction with room for a first value and some more; a full map would lose all that is in it."""
        assert self._env is not None
        self._room_bytes = max(first_bytes, _TRANSACTION_BYTES)
        need = self._path.stat().st_size + self._room_bytes + _SLACK_BYTES
        if need > self._map_bytes:
            self._map_bytes = -(-need // _MAP_STEP_BYTES) * _MAP_STEP_BYTES
            self._env.set_mapsize(self._map_bytes)
        return self._env.begin(write=True)

    def _end_transaction(self) -> None:
        if self._transaction is not None:
            self._transaction.commit()
            start_writeback(self._descriptor)
        self._transaction, self._room_bytes = None, 0

    def commit(self) -> np.ndarray:
        if self._pack:
            self._close_pack()
        assert self._env is not None
        try:
            self._end_transaction()
            self._env.sync(True)
        except lmdb.Error as error:
            raise _as_os_error(error, self._path) from None
        self._close()
        offsets, sizes = value_offsets(self._path)
        _check_against_lmdb(self._path, offsets, sizes)
        return np.repeat(offsets, self._counts) + np.array(self._within, np.int64)

    def abort(self) -> None:
        self._close()
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        if self._env is not None:
            self._env.close()
            self._env = None
            os.close(self._descriptor)


def _open(path: Path, **options: Any) -> lmdb.Environment:
    if int(lmdb.__version__.split(".")[0]) >= 3:
        options["lib_version"] = 0  # the engine of data version 1, which every LMDB tool reads
    return lmdb.open(str(path), subdir=False, lock=False, sync=False, metasync=False, max_dbs=0, **options)


def _value_bytes(records: list[np.ndarray]) -> int:
    table = 0 if len({len(record) for record in records}) == 1 else 8 * len(records)
    return max(HEADER_BYTES + sum(align(len(record)) for record in records) + table, MIN_VALUE_BYTES)


def _fill_value(value: np.ndarray, records: list[np.ndarray], first_slot: int) -> list[int]:
    """Write header, records and the table of lengths; returns where each record starts in the value."""
    lengths = [len(record) for record in records]
    same = lengths[0] if len(set(lengths)) == 1 else 0
    steps = [align(length) for length in lengths]
    ends = list(itertools.accumulate(steps, initial=HEADER_BYTES))
    table = 0 if same else ends[-1]
    value[HEADER_BYTES + same if len(records) == 1 else 0 :] = 0
    header = struct.pack(_HEADER, MAGIC, 1, first_slot, len(records), same, table)
    value[:HEADER_BYTES] = np.frombuffer(header, np.uint8)
    for record, start in zip(records, ends):
        value[start : start + len(record)] = record
    if not same:
        value[table : table + 8 * len(lengths)] = np.array(lengths, "<u8").view(np.uint8)
    return ends[:-1]


def _check_against_lmdb(path: Path, offsets: np.ndarray, sizes: np.ndarray) -> None:
    """Plain reads at the offsets must give what LMDB gives."""
    file = np.memmap(path, np.uint8, "r").view(np.ndarray)
    env = _open(path, readonly=True, map_size=path.stat().st_size)
    try:
        with env.begin(buffers=True) as transaction:
            count = 0
            for (_, value), offset, size in zip(transaction.cursor(), offsets.tolist(), sizes.tolist()):
                found = np.frombuffer(value, np.uint8)
                if (offset + HEADER_BYTES) % ALIGNMENT or not np.array_equal(file[offset : offset + size], found):
                    raise FormatError(f"{path}: value {count} is not where the file's tree says it is")
                count += 1
                del value, found
            if count != transaction.stat()["entries"]:
                raise FormatError(f"{path}: found {count} values of {transaction.stat()['entries']}")
    finally:
        env.close()


def _as_os_error(error: lmdb.Error, path: Path) -> OSError:
    """LMDB reports a failed write as `mdb_txn_commit: No space left on device`, or EIO after a short write."""
    text = str(error)
    if "No space left" in text or shutil.disk_usage(path.parent).free < _TRANSACTION_BYTES:
        return OSError(errno.ENOSPC, "No space left on device")
    return OSError(errno.EIO, text)
