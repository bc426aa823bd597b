"""One pass over a folder tree: which files are images, which are audio, and what is left out."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from precompile.errors import StorageError
from precompile.pipeline.sources._media import (
    AUDIO,
    HEAD_SIZE,
    IMAGE,
    NO_SUFFIX,
    is_hidden,
    media_of_head,
    media_of_suffix,
    suffix_of,
)

_Identity = tuple[int, int]
"""(st_dev, st_ino) of a folder."""


@dataclass(slots=True)
class Folder:
    """What lies directly in one folder, in no particular order."""

    path: str
    """Relative to the root, with `/`; the root itself is `""`."""
    files: dict[str, list[str]] = field(default_factory=lambda: {IMAGE: [], AUDIO: []})
    """Names of the known files by media."""
    left_out: Counter[str] = field(default_factory=Counter)
    """All else: by suffix, or as `hidden`, `not a file`, `broken link`, `symlink loop`, `unreadable`."""


def walk(root: Path) -> Iterator[Folder]:
    """All folders below and including `root`, except hidden ones; symbolic links are followed.

    A link to a folder that contains it is left out, so loops end; a folder that is reached by two ways is
    walked twice, as os.walk(followlinks=True) does. Only files without a suffix are opened.
    Raises StorageError for a folder that cannot be listed.
    """
    pending: list[tuple[str, frozenset[_Identity]]] = [("", frozenset())]
    while pending:
        path, ancestors = pending.pop()
        full = os.path.join(root, path)
        folder = Folder(path)
        try:
            ancestors |= {_identity(os.stat(full))}
            with os.scandir(full) as entries:
                below = [entry.name for entry in entries if _enter(entry, folder, ancestors)]
        except OSError as error:
            where = os.fsdecode(error.filename) if error.filename else full
            raise StorageError(f"{where}: cannot be read: {error.strerror}") from error
        pending += [(f"{path}/{name}" if path else name, ancestors) for name in below]
        yield folder


def describe(left_out: Counter[str]) -> str:
    """Counts for a message, the largest first: `12 .txt, 3 hidden`."""
    most = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{count} {what}" for what, count in most[:8]] + ["…"] * (len(most) > 8)
    return ", ".join(parts) or "nothing"


def _enter(entry: os.DirEntry[str], folder: Folder, ancestors: frozenset[_Identity]) -> bool:
    """File `entry` under `folder`. Returns whether it is a folder to walk."""
    name = entry.name
    if is_hidden(name):
        folder.left_out["hidden"] += 1
        return False
    try:
        is_folder, is_file = entry.is_dir(), entry.is_file()
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        is_folder = is_file = False
    if is_folder and entry.is_symlink() and _identity(entry.stat()) in ancestors:
        folder.left_out["symlink loop"] += 1
        return False
    if is_file:
        kind = _kind(entry)
        if kind in folder.files:
            folder.files[kind].append(name)
        else:
            folder.left_out[kind] += 1
    elif not is_folder:
        broken = entry.is_symlink() and not os.path.exists(entry.path)
        folder.left_out["broken link" if broken else "not a file"] += 1
    return is_folder


def _kind(file: os.DirEntry[str]) -> str:
    """The media of a file, or under what it is left out."""
    suffix = suffix_of(file.name)
    if suffix != NO_SUFFIX:
        return media_of_suffix(suffix) or suffix
    try:
        with open(file.path, "rb", buffering=0) as content:
            return media_of_head(content.read(HEAD_SIZE)) or NO_SUFFIX
    except PermissionError:
        return "unreadable"


def _identity(stat: os.stat_result) -> _Identity:
    return stat.st_dev, stat.st_ino
