"""Files found in a folder tree, held as arrays: no object is kept for a file."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from precompile.pipeline.input_stat import pack_stat, stat_array


class Files:
    """n files, folder after folder, each folder's sorted by name."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        """Relative to the root; `""` is the root."""
        self._names: list[bytes] = []
        """Of each folder, joined by NUL."""
        self._counts = array("q")
        self._stat = array("q")
        """Folder after folder, but within a folder as they were found."""
        self._order = array("q")
        """Where, among those of its folder, the stat of each file lies."""

    def add(self, folder: str, names: list[str], stat: list[int]) -> None:
        """Files directly in one folder; stat: their STAT_FIELDS, one file after another."""
        order = sorted(range(len(names)), key=names.__getitem__)
        self.folders.append(folder)
        self._names.append("\0".join([names[place] for place in order]).encode("utf-8", "surrogateescape"))
        self._counts.append(len(names))
        self._order.extend(array("q", order))
        self._stat.extend(pack_stat(stat))

    def __len__(self) -> int:
        return len(self._order)

    def count(self, folder: int) -> int:
        """How many files the folder number `folder` has."""
        return self._counts[folder]

    def paths(self) -> Iterator[str]:
        for folder in range(len(self.folders)):
            yield from self.joined_paths(folder).decode("utf-8", "surrogateescape").split("\0")

    def joined_paths(self, folder: int) -> bytes:
        """The paths of one folder's files, joined by NUL."""
        if not self.folders[folder]:
            return self._names[folder]
        prefix = f"{self.folders[folder]}/".encode("utf-8", "surrogateescape")
        return prefix + self._names[folder].replace(b"\0", b"\0" + prefix)

    def stat(self, folders: Sequence[int]) -> np.ndarray:
        """int64 (files, 4): STAT_FIELDS of the files of some folders, one folder after another."""
        counts = np.frombuffer(self._counts, np.int64)
        first = np.cumsum(counts) - counts
        chosen = counts[folders]
        start = np.repeat(first[folders], chosen)
        within = np.arange(len(start)) - np.repeat(np.cumsum(chosen) - chosen, chosen)
        found: np.ndarray = stat_array(self._stat)[start + np.frombuffer(self._order, np.int64)[start + within]]
        return found
