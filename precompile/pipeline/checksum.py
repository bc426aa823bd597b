"""XXH3 checksums of files and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xxhash

from precompile.format.text import TextColumn

_BLOCK_BYTES = 1 << 20


def file_checksum(path: Path) -> str:
    """XXH3-128 of a whole file, 32 hex digits."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def values_checksum(*values: Any) -> str:
    """XXH3-128 over strings, bytes, arrays and text columns, each marked with its length so that none can shift."""
    digest = xxhash.xxh3_128()
    for value in values:
        if isinstance(value, TextColumn):
            parts = [value.offsets - value.offsets[0], value.data[value.offsets[0] : value.offsets[-1]]]
        else:
            parts = [value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value]
        for part in parts:
            view = memoryview(part) if isinstance(part, bytes) else part.reshape(-1).view("u1").data
            digest.update(view.nbytes.to_bytes(8, "little"))
            digest.update(view)
    return digest.hexdigest()
