"""Open files of this process alone: a process that is forked meanwhile closes its copies at once.

Else a child that lives on would keep a lock, or the memory of a file that was deleted.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from precompile.format.files import OpenFile

guard = threading.RLock()
"""Held by who opens such files, and by who forks. Reentrant: a lock may be garbage collected meanwhile."""
_files: weakref.WeakSet[OpenFile] = weakref.WeakSet()


def open_file(path: Path, flags: int) -> OpenFile:
    """As os.open, for the owner of the file alone. `close` it in the end. Raises OSError."""
    with guard:
        file = OpenFile(os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600))
        _files.add(file)
        return file


def close(file: OpenFile) -> None:
    with guard:
        _files.discard(file)
        file.close()


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_WRONLY) -> Iterator[int]:
    """The descriptor of a file, as long as it is written. Raises OSError."""
    file = open_file(path, flags)
    try:
        yield file.descriptor
    finally:
        close(file)


@contextlib.contextmanager
def in_no_child(file: OpenFile | None) -> Iterator[None]:
    """Children forked meanwhile close the file."""
    if file is None:
        yield
        return
    _files.add(file)
    try:
        yield
    finally:
        _files.discard(file)


def _after_in_child() -> None:
    global guard
    guard = threading.RLock()
    for file in list(_files):
        with contextlib.suppress(OSError):
            file.close()
    _files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: guard.acquire(), after_in_parent=lambda: guard.release(), after_in_child=_after_in_child
    )
