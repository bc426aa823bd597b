"""Writing one shard. A writer tells where each record came to lie."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from precompile.pipeline import plugins


class ShardWriter(Protocol):
    """Writes one shard file; records are appended in slot order by one thread.

    `commit` makes the file durable and returns int64 (records,): the file offset of each record, a multiple of 64.
    `abort` removes the file and may be called at any time, also after a failed commit. Exactly one of them ends
    the writer. OSErrors (a full disk) are passed on. Equal records give equal bytes.
    """

    def append(self, record: np.ndarray) -> None:
        """record: uint8 (bytes,), contiguous, at least one byte. It must not change until the writer has ended."""
        ...

    def commit(self) -> np.ndarray: ...

    def abort(self) -> None: ...


def suffix(store: str) -> str:
    """The file suffix of a store's shards, which is also the name of its writer."""
    return "flat" if store == "tmpfs" else store


def open_writer(store: str, path: Path) -> ShardWriter:
    """A writer for a new file at `path`. Raises RecipeError for an unknown store."""
    writer: ShardWriter = plugins.load("writers", suffix(store)).make(path)
    return writer
