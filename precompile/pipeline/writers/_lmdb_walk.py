"""Where LMDB put each value: a walk of the B-tree of a closed LMDB file, data version 1, without LMDB.

The structures are those of LMDB's mdb.c: a page is a 16-byte header (page number, pad, flags, lower, upper) and
node offsets; a node is 8 bytes (size low, size high, flags, key size), the key, then the data or, with F_BIGDATA,
the number of the first of a run of overflow pages that holds the value behind one more page header.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from precompile.errors import FormatError

_MAGIC, _DATA_VERSION = 0xBEEFC0DE, 1
_PAGE_HEADER = 16
_LEAF, _F_BIGDATA = 0x02, 0x01
_META_DB_MAIN = _PAGE_HEADER + 24 + 48
_DEPTH, _ROOT, _LAST_PAGE_TXN = 6, 40, 48
_NO_PAGE = 2**64 - 1


def value_offsets(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """File offsets and sizes of all values in key order, both int64 (n,). All values must be on overflow pages."""
    file = np.memmap(path, np.uint8, "r").view(np.ndarray)
    (page_bytes,) = struct.unpack_from("<I", file.data, _PAGE_HEADER + 24)
    root, depth = _newest_root(file, page_bytes, path)
    offsets: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    level = [] if root == _NO_PAGE else [root]
    for _ in range(depth):
        below: list[int] = []
        for number in level:
            page = file[number * page_bytes : (number + 1) * page_bytes]
            nodes, starts = _nodes(page)
            if page[10] & _LEAF:
                offsets.append(_overflow_pages(page, nodes, starts, path) * page_bytes + _PAGE_HEADER)
                sizes.append(nodes[:, 0] | nodes[:, 1] << 16)
            else:
                below += (nodes[:, 0] | nodes[:, 1] << 16 | nodes[:, 2] << 32).tolist()
        level = below
    if not offsets:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(offsets), np.concatenate(sizes)


def _newest_root(file: np.ndarray, page_bytes: int, path: Path) -> tuple[int, int]:
    newest = (-1, 0, 0)
    for meta in (0, page_bytes):
        magic, version = struct.unpack_from("<II", file.data, meta + _PAGE_HEADER)
        if (magic, version) != (_MAGIC, _DATA_VERSION):
            raise FormatError(
                f"{path}: expected LMDB data version {_DATA_VERSION}, found magic {magic:#x}, version {version}"
            )
        main = meta + _META_DB_MAIN
        (depth,) = struct.unpack_from("<H", file.data, main + _DEPTH)
        (root,) = struct.unpack_from("<Q", file.data, main + _ROOT)
        _, txn = struct.unpack_from("<QQ", file.data, main + _LAST_PAGE_TXN)
        newest = max(newest, (txn, root, depth))
    return newest[1], newest[2]


def _nodes(page: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The four 16-bit fields of each node as int64 (nodes, 4), and where the nodes start in the page."""
    (lower,) = struct.unpack_from("<H", page.data, 12)
    starts = page[_PAGE_HEADER:lower].view("<u2").astype(np.int64)
    fields = page[starts[:, None] + np.arange(8)].reshape(len(starts), 8).view("<u2").astype(np.int64)
    return fields, starts


def _overflow_pages(page: np.ndarray, nodes: np.ndarray, starts: np.ndarray, path: Path) -> np.ndarray:
    if not (nodes[:, 2] == _F_BIGDATA).all():
        raise FormatError(f"{path}: a value lies inside a leaf page, where it is not aligned")
    at = starts + 8 + nodes[:, 3]
    numbers: np.ndarray = page[at[:, None] + np.arange(8)].reshape(len(at), 8).view("<i8")[:, 0]
    return numbers
