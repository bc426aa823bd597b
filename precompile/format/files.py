"""Opening files that nobody vouches for: an error names the file, and nothing hangs on what is no file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from precompile.errors import FormatError

READ_ONLY = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Without O_NONBLOCK, opening a named pipe waits for a writer."""


def open_regular(path: Path) -> int:
    """A read-only descriptor of a regular file.

    Raises FileNotFoundError when nothing is there, FormatError when it is no file or cannot be opened.
    """
    try:
        descriptor = os.open(path, READ_ONLY)
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise cannot_be_read(path, error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FormatError(f"{path}: expected a file, found a folder or a device; restore the file or build again")
    return descriptor


def cannot_be_read(path: Path, error: Exception) -> FormatError:
    reason = getattr(error, "strerror", None) or error
    return FormatError(f"{path}: cannot be read: {reason}; mend the storage, restore the file or build again")


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
