"""Files with labels, splits and columns, held as arrays: cheap to keep and to pickle at 10^8 of them."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from precompile.format.text import TextColumn
from precompile.pipeline.sample import Part, RawSample

Column = np.ndarray | TextColumn
"""int64 or float64 (n,), or n strings."""


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """n files, in the order of the dataset."""

    paths: TextColumn
    """With `/`, relative to the source's root; absolute for files outside. They are the keys of the samples."""
    split: np.ndarray
    """int32 (n,), an index into the source's `splits`."""
    label: np.ndarray | None
    """int64 (n,), an index into the source's `classes` or an integer class; -1 is none. None: no file has a label."""
    columns: Mapping[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = [self.split, *([] if self.label is None else [self.label]), *self.columns.values()]
        assert all(len(column) == len(self.paths) for column in columns), "columns of a listing have one length"

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True, slots=True, eq=False)
class FolderSource:
    """A Source over the files below one folder. Indices are 0 to len - 1; any other raises IndexError."""

    media: str
    root: Path
    """Absolute."""
    listing: Listing
    splits: tuple[str, ...]
    classes: tuple[str, ...] | None
    left_out: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.listing)

    def __getitem__(self, index: int) -> RawSample:
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} samples")
        key = self.listing.paths[index]
        parts: dict[str, Part] = {self.media: self.root / key}
        if self.listing.label is not None:
            parts["label"] = self._label(int(self.listing.label[index]))
        for name, column in self.listing.columns.items():
            parts[name] = column[index] if isinstance(column, TextColumn) else column[index].item()
        return RawSample(key, self.splits[self.listing.split[index]], parts)

    def _label(self, label: int) -> Part:
        return label if label < 0 or self.classes is None else self.classes[label]


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

    def extend(self, strings: Iterable[str]) -> None:
        for string in strings:
            self.append(string)

    def finish(self) -> TextColumn:
        return TextColumn(np.frombuffer(self._offsets, np.int64).copy(), np.frombuffer(bytes(self._data), np.uint8))

    def __len__(self) -> int:
        return len(self._offsets) - 1
