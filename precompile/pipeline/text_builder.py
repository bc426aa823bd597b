"""Strings that come one by one -> a text column."""

from __future__ import annotations

from array import array

import numpy as np

from precompile.format.text import TextColumn


class TextBuilder:
    """Collects strings into a TextColumn without an object for each."""

    def __init__(self, num_empty: int = 0) -> None:
        """Starts with `num_empty` empty strings."""
        self._offsets = array("q", bytes(8 * (num_empty + 1)))
        self._data = bytearray()

    def append(self, string: str) -> None:
        """Raises UnicodeEncodeError for a lone surrogate that does not stand for a byte of a file name."""
        self._data += string.encode("utf-8", "surrogateescape")
        self._offsets.append(len(self._data))

    def finish(self) -> TextColumn:
        return TextColumn(np.frombuffer(self._offsets, np.int64).copy(), np.frombuffer(bytes(self._data), np.uint8))

    def __len__(self) -> int:
        return len(self._offsets) - 1
