"""Opening files that nobody vouches for: an error names the file, and nothing hangs on what is no file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from precompile.errors import FormatError

READ_ONLY = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Without O_NONBLOCK, opening a named pipe waits for a writer."""
_IS_NO_FILE = {errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR}


class UnreadableError(FormatError):
    """The file may be whole: this process may not read it, is short of descriptors or memory, or the storage fails."""


class OpenFile:
    """Owns a descriptor until `close`, or until it is garbage collected. Not picklable; inherited by fork."""

    __slots__ = ("__weakref__", "descriptor")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def close(self, _close=os.close) -> None:  # type: ignore[no-untyped-def]  # bound here: used at exit, too
        """Once. An interrupt comes before it or after it, never between."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            _close(descriptor)

    __del__ = close


def open_regular(path: Path) -> int:
    """A read-only descriptor of a regular file.

    Raises FileNotFoundError when nothing is there, FormatError when it is no file, UnreadableError when it cannot be
    opened.
    """
    try:
        descriptor = os.open(path, READ_ONLY)
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise cannot_be_read(path, error) from None
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        raise FormatError(f"{path}: expected a file, found a folder or a device; restore the file or build again")
    except BaseException:
        os.close(descriptor)
        raise


def cannot_be_read(path: Path, error: Exception) -> FormatError:
    """An UnreadableError, unless the error says that what lies there is no file."""
    reason = getattr(error, "strerror", None) or error
    kind = UnreadableError if isinstance(error, OSError) and error.errno not in _IS_NO_FILE else FormatError
    return kind(f"{path}: cannot be read: {reason}; mend the storage, restore the file or build again")


def read_whole(path: Path, max_bytes: int) -> bytes:
    """The bytes of a file. Raises as `open_regular`, and FormatError for more than `max_bytes`."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            num_bytes = os.fstat(file.fileno()).st_size
            if num_bytes <= max_bytes:
                return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise cannot_be_read(path, error) from None
    raise FormatError(f"{path}: expected at most {max_bytes} bytes, found {num_bytes}; restore the file or build again")
