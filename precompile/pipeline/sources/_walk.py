"""One pass over a folder tree: which files are images, which are audio, and what is left out."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from precompile.errors import StorageError
from precompile.pipeline.input_stat import fields_of
from precompile.pipeline.sources._files import Files
from precompile.pipeline.sources._media import (
    AUDIO,
    HEAD_SIZE,
    IMAGE,
    MEDIA_OF_ENDING,
    NO_SUFFIX,
    is_hidden,
    media_of_head,
    media_of_suffix,
    suffix_of,
)

_Identity = tuple[int, int]
"""(st_dev, st_ino) of a folder."""


@dataclass(frozen=True, slots=True)
class Tree:
    """What lies below a root."""

    folders: list[str]
    """All folders that were read, relative to the root, with `/`; the root itself is `""`."""
    files: dict[str, Files]
    """By media."""
    left_out: Counter[str]
    """All else: by suffix, or as `hidden`, `not a file`, `broken link`, `symlink loop`, `unreadable`."""


def walk(root: Path, media: Iterable[str] = (IMAGE, AUDIO)) -> Tree:
    """All folders below and including `root`, except hidden ones; symbolic links are followed.

    A link to a folder that contains it is left out, so loops end; a folder that is reached by two ways is
    walked twice, as os.walk(followlinks=True) does. Only files without a suffix are opened. Files of other media are
    left out. Raises StorageError for a folder that cannot be listed and for a file of `media` that has no stat.
    """
    tree = Tree([], {kind: Files() for kind in media}, Counter())
    pending: list[tuple[str, frozenset[_Identity]]] = [("", frozenset())]
    while pending:
        path, ancestors = pending.pop()
        scan = _Scan(tree, path, os.path.join(root, path), ancestors, [])
        try:
            scan.run()
        except OSError as error:
            where = os.path.join(scan.full_path, error.filename) if isinstance(error.filename, str) else scan.full_path
            raise StorageError(f"{where}: cannot be read: {error.strerror}") from error
        tree.folders.append(path)
        pending += [(f"{path}/{name}" if path else name, scan.ancestors) for name in scan.below]
    return tree


def describe(left_out: Counter[str]) -> str:
    """Counts for a message, the largest first: `12 .txt, 3 hidden`."""
    most = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{count} {what}" for what, count in most[:8]] + ["…"] * (len(most) > 8)
    return ", ".join(parts) or "nothing"


@dataclass(slots=True)
class _Scan:
    """Sorts the entries of one folder into a tree."""

    tree: Tree
    path: str
    """Relative to the root."""
    full_path: str
    ancestors: frozenset[_Identity]
    """The folders above this one, and then this one too."""
    below: list[str]
    """Names of folders to walk."""

    def run(self) -> None:
        # By a descriptor, so that the stat of an entry need not look up the path of the folder again.
        descriptor = os.open(self.full_path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.ancestors |= {_identity(os.fstat(descriptor))}
            with os.scandir(descriptor) as entries:
                self._read(entries)
        finally:
            os.close(descriptor)

    def _read(self, entries: Iterable[os.DirEntry[str]]) -> None:
        found: dict[str | None, tuple[list[str], list[int]]] = {kind: ([], []) for kind in self.tree.files}
        for entry in entries:
            name = entry.name
            kind = MEDIA_OF_ENDING.get(name[name.rfind(".") :])
            if kind not in found or name[0] == "." or not entry.is_file(follow_symlinks=False):
                kind = self._look_at(entry)  # one in many, so it may take longer
                if kind is None:
                    continue
            names, stat = found[kind]
            names.append(name)
            stat += fields_of(entry.stat())
        for kind, files in self.tree.files.items():
            if found[kind][0]:
                files.add(self.path, *found[kind])

    def _look_at(self, entry: os.DirEntry[str]) -> str | None:
        """The media of a wanted file. All else is noted, as a folder or as left out."""
        left_out = self.tree.left_out
        if is_hidden(entry.name):
            left_out["hidden"] += 1
            return None
        try:
            is_folder, is_file = entry.is_dir(), entry.is_file()
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            is_folder = is_file = False
        if is_file:
            kind = self._kind(entry.name)
            if kind in self.tree.files:
                return kind
            left_out[suffix_of(entry.name) if kind in (IMAGE, AUDIO) else kind] += 1
        elif not is_folder:
            broken = entry.is_symlink() and not os.path.exists(os.path.join(self.full_path, entry.name))
            left_out["broken link" if broken else "not a file"] += 1
        elif entry.is_symlink() and _identity(entry.stat()) in self.ancestors:
            left_out["symlink loop"] += 1
        else:
            self.below.append(entry.name)
        return None

    def _kind(self, name: str) -> str:
        """The media of a file, or under what it is left out."""
        suffix = suffix_of(name)
        if suffix != NO_SUFFIX:
            return media_of_suffix(suffix) or suffix
        try:
            with open(os.path.join(self.full_path, name), "rb", buffering=0) as content:
                return media_of_head(content.read(HEAD_SIZE)) or NO_SUFFIX
        except PermissionError:
            return "unreadable"


def _identity(stat: os.stat_result) -> _Identity:
    return stat.st_dev, stat.st_ino
