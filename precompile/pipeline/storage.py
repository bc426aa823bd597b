"""Touching the disk: reads that are retried, writes that are durable, and what an OSError means."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from precompile.errors import StorageError

_TRANSIENT = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EREMOTEIO}
_WAITS_SECONDS = (0.1, 0.5, 2.0)
_SYNC_FILE_RANGE_WRITE = 2
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def read_file(path: Path) -> bytes:
    """All bytes of a file. Transient errors are retried; what remains is raised as StorageError, naming the file."""
    for wait_seconds in (*_WAITS_SECONDS, None):
        try:
            return path.read_bytes()
        except OSError as error:
            if wait_seconds is None or error.errno not in _TRANSIENT:
                raise storage_error(error, f"cannot read {path}") from None
            time.sleep(wait_seconds)
    raise AssertionError


def storage_error(error: OSError, doing: str) -> StorageError:
    """An OSError as one line that says what to do."""
    reason = error.strerror or str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StorageError(f"{doing}: {reason}; raise the limit on open files (ulimit -n)")
    if error.errno in _FULL or (error.errno is None and " requested and " in reason):  # numpy's short write
        return StorageError(f"{doing}: {reason}; free some space, then run the same command again to go on")
    if isinstance(error, FileNotFoundError):
        hint = "build again on a source at rest" if doing.startswith("cannot read") else "is it being deleted?"
        return StorageError(f"{doing}: it is gone, or its folder is; {hint}")
    if isinstance(error, PermissionError):
        return StorageError(f"{doing}: {reason}; give the building user access")
    return StorageError(f"{doing}: {reason}; mend the storage, then run the same command again to go on")


@contextlib.contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """OSErrors inside become StorageErrors that begin with `doing`."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(error, doing) from None


def start_writeback(descriptor: int) -> None:
    """Ask the kernel to begin writing a file's dirty pages, without waiting, so that a later fsync is short.

    Only a hint, which Linux knows: durability is fsync's business.
    """
    function = _sync_file_range()
    if function is not None:
        function(descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)


@functools.cache
def _sync_file_range() -> Callable[..., int] | None:
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    result: Callable[..., int] = function
    return result


def sync_dir(path: Path) -> None:
    """Make renames inside a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_files(directory: Path) -> None:
    """Make all files of a directory durable. All are sent first, so that one journal entry serves them together."""
    files = [path for path in sorted(directory.iterdir()) if path.is_file()]
    for wait in (False, True):
        for path in files:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor) if wait else start_writeback(descriptor)
            finally:
                os.close(descriptor)
    sync_dir(directory)


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """The file has the old content or the new one, whatever happens to this process; if durable, to the machine."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        sync_dir(path.parent)


def refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise StorageError(f"{path}: expected a folder that precompile made, found a link; remove the link")


def empty_dir(path: Path) -> None:
    """Make `path` an empty directory; what it held is deleted. Only for directories that precompile made.

    Raises StorageError for a link, whose target is somebody else's.
    """
    refuse_link(path)
    path.mkdir(parents=True, exist_ok=True)
    for child in path.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()
