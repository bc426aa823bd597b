"""Files below one folder as a Source: cheap to keep and to pickle at 10^8 of them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precompile.format.text import TextColumn
from precompile.pipeline.sample import Listing, Part, RawSample


@dataclass(frozen=True, slots=True, eq=False)
class FolderSource:
    """A Source over files whose locations are their keys. Indices are 0 to len - 1; any other raises IndexError."""

    media: str
    listing: Listing
    left_out: Mapping[str, int]

    @property
    def root(self) -> Path:
        """The folder that keys are relative to; absolute."""
        return Path(self.listing.root)

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.listing.classes

    def __len__(self) -> int:
        return len(self.listing)

    def __getitem__(self, index: int) -> RawSample:
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} samples")
        key = self.listing.keys[index]
        parts: dict[str, Part] = {self.media: self.root / key}
        for name, column in self.listing.columns.items():
            value = column[index] if isinstance(column, TextColumn) else column[index].item()
            parts[name] = self._label(value) if name == "label" else value
        return RawSample(key, self.listing.splits[self.listing.split[index]], parts)

    def _label(self, label: Any) -> Part:
        return label if label < 0 or self.classes is None else self.classes[label]  # type: ignore[no-any-return]


def split_text(joined: bytes) -> TextColumn:
    """Strings joined by NUL -> a column of them; at least one."""
    data = np.frombuffer(joined, np.uint8)
    ends = np.flatnonzero(data == 0)
    offsets = np.empty(len(ends) + 2, np.int64)
    offsets[0], offsets[1:-1], offsets[-1] = 0, ends - np.arange(len(ends)), len(data) - len(ends)
    return TextColumn(offsets, np.frombuffer(joined.replace(b"\0", b""), np.uint8))
