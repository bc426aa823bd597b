"""Many strings as two arrays: cheap to hold, to map and to pickle at 10^8 of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import numpy as np

from precompile.errors import FormatError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TextColumn(Sequence[str]):
    """A read-only sequence of strings. String i is `data[offsets[i]:offsets[i + 1]]` in UTF-8.

    Reading a string raises FormatError when its offsets are damaged.
    """

    offsets: np.ndarray
    """int64 (n + 1,), ascending; the first need not be 0 (a slice shares `data`)."""
    data: np.ndarray
    """uint8 (bytes,)"""
    path: Path | None = None
    """The file of the offsets, for messages."""

    @classmethod
    def of(cls, strings: Iterable[str]) -> TextColumn:
        """Pack strings. Names that are not valid text (surrogates from the file system) are kept by surrogateescape."""
        data = bytearray()
        ends = [0]
        for string in strings:
            data += string.encode("utf-8", "surrogateescape")
            ends.append(len(data))
        return cls(np.array(ends, np.int64), np.frombuffer(bytes(data), np.uint8))

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"TextColumn of {len(self)}: [{shown}{', …' if len(self) > 3 else ''}]"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> TextColumn: ...
    def __getitem__(self, index: int | slice) -> str | TextColumn:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError(f"a slice of a text column must have step 1, got step={step}")
            return replace(self, offsets=self.offsets[start : max(start, stop) + 1])
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} strings")
        start, stop = self.offsets[index : index + 2].tolist()
        if not 0 <= start <= stop <= len(self.data):
            raise self._damaged()
        return self.data[start:stop].tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), 4096):
            offsets = self.offsets[start : start + 4097]
            self._check(offsets[:-1], offsets[1:])
            ends = offsets.tolist()
            block = self.data[ends[0] : ends[-1]].tobytes()
            for begin, end in itertools.pairwise(ends):
                yield block[begin - ends[0] : end - ends[0]].decode("utf-8", "surrogateescape")

    def take(self, indices: np.ndarray) -> TextColumn:
        """The strings at `indices` (int64), in that order, packed anew."""
        starts, stops = self.offsets[indices], self.offsets[np.asarray(indices) + 1]
        self._check(starts, stops)
        offsets = np.zeros(len(starts) + 1, np.int64)
        np.cumsum(stops - starts, out=offsets[1:])
        source = np.repeat(starts - offsets[:-1], stops - starts) + np.arange(offsets[-1])
        return TextColumn(offsets, self.data[source])

    def _check(self, starts: np.ndarray, stops: np.ndarray) -> None:
        if not ((starts >= 0) & (starts <= stops) & (stops <= len(self.data))).all():
            raise self._damaged()

    def _damaged(self) -> FormatError:
        return FormatError(f"{self.path or 'text'}: offsets must ascend from 0 to {len(self.data)}, the bytes of the "
                           "text; restore the file or build again")  # fmt: skip
