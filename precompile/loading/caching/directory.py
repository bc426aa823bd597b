"""The folder that holds the entries of a cache: made for one user, and refused when it is anything else.

<name>/             a complete entry; it appears by one rename
<name>.lock         held by who stages or drops the entry; says how far it is
.<name>.half/       being staged, or left by a process that died
.<name>.….gone/     dropped, being deleted
.precompile-cache   says that precompile made this folder
.lock               held while room is checked and reserved
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import stat
import uuid
from pathlib import Path

from precompile.errors import ForeignDirectoryError, StorageError
from precompile.loading.caching.room import storage_error

MARKER = ".precompile-cache"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}-[0-9a-f]{12}")
_MAX_SLUG = 48
_log = logging.getLogger("precompile")


class CacheDirectory:
    """A checked cache folder.

    Raises ForeignDirectoryError when it is a link, is another user's, may be written to by others, or holds
    what precompile did not make; NoRoomError when there is no room for it; StorageError when it cannot be made, or
    where there are no locks.
    """

    def __init__(self, path: Path, *, make: bool = True) -> None:
        self.path = path
        _check_platform()
        try:
            if make:
                path.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    path.mkdir(mode=0o700)
            if os.path.lexists(path):
                _check(path)
                if make and not os.path.lexists(path / MARKER):
                    with contextlib.suppress(FileExistsError):
                        os.close(os.open(path / MARKER, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            advice = "choose another directory with Cache(directory=…)"
            raise storage_error(error, f"{path}: cannot be a cache: {error.strerror}; {advice}") from None

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    def entry(self, name: str) -> Path:
        return self.path / name

    def entry_lock(self, name: str) -> Path:
        return self.path / f"{name}.lock"

    def half(self, name: str) -> Path:
        return self.path / f".{name}.half"

    def entries(self) -> list[str]:
        """Names of the complete entries."""
        return sorted(name for name in self._folders() if is_name(name))

    def halves(self) -> list[str]:
        """Names of the entries that are being staged or were left half-made."""
        found = (name[1:-5] for name in self._folders() if name.startswith(".") and name.endswith(".half"))
        return sorted(name for name in found if is_name(name))

    def locks(self) -> list[str]:
        """Names of the entries that have a lock file."""
        found = (name[:-5] for name in self._names() if name.endswith(".lock"))
        return sorted(name for name in found if is_name(name))

    def gone(self) -> list[Path]:
        """What was dropped and is not deleted yet."""
        found = [(name, name[1:].rpartition("..")) for name in self._folders() if name.endswith(".gone")]
        return [self.path / name for name, (entry, dots, _) in found if dots and is_name(entry)]

    def discard(self, folder: Path, name: str) -> bool:
        """Take a folder away at once, then delete it; False when something is left, which a warning names.

        Raises StorageError when it cannot be taken away.
        """
        gone = self.path / f".{name}..{uuid.uuid4().hex}.gone"
        try:
            folder.rename(gone)
        except FileNotFoundError:
            return True
        except OSError as error:
            raise StorageError(f"{folder}: cannot be taken away: {error.strerror}; delete it by hand") from None
        return remove_tree(gone)

    def _folders(self) -> list[str]:
        return self._names(folders=True)

    def _names(self, *, folders: bool = False) -> list[str]:
        try:
            with os.scandir(self.path) as found:
                return [item.name for item in found if not folders or item.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be listed: {error.strerror}") from None


def is_name(name: str) -> bool:
    """Whether an entry could be called so."""
    return _NAME.fullmatch(name) is not None


def entry_name(dataset: str, digest: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", dataset).strip("-._")[:_MAX_SLUG].rstrip("-._")
    return f"{slug or 'dataset'}-{digest[:12]}"


def remove_tree(folder: Path) -> bool:
    """False when something is left, which a warning names: it is no reason to fail. Links are never followed."""
    for _ in range(3):
        try:
            shutil.rmtree(folder)
            return True
        except FileNotFoundError:  # or another process is deleting the same one
            if not os.path.lexists(folder):
                return True
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            if os.path.lexists(folder):
                _log.warning("%s: cannot be deleted: %s; delete it by hand", folder, error.strerror)
                return False
    return not os.path.lexists(folder)


def _check_platform() -> None:
    try:
        import fcntl  # noqa: F401
    except ImportError:
        has_locks = False
    else:
        has_locks = True
    if not has_locks or not hasattr(os, "posix_fallocate"):
        raise StorageError("a cache needs file locks and posix_fallocate, which Linux has; leave cache= out here")


def _check(path: Path) -> None:
    found = path.lstat()
    advice = "choose another, empty directory for the cache"
    if stat.S_ISLNK(found.st_mode):
        raise ForeignDirectoryError(f"{path}: expected a folder that precompile made, found a link; {advice}")
    if not stat.S_ISDIR(found.st_mode):
        raise ForeignDirectoryError(f"{path}: expected a folder that precompile made, found a file; {advice}")
    if found.st_uid != os.geteuid():
        raise ForeignDirectoryError(
            f"{path}: expected a folder of user {os.geteuid()}, found one of user {found.st_uid}; {advice}"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ForeignDirectoryError(
            f"{path}: others may write there (mode {stat.S_IMODE(found.st_mode):04o}); run `chmod 700 {path}` "
            "when you trust what it holds, or choose another directory for the cache"
        )
    names = os.listdir(path)
    if names and not os.path.lexists(path / MARKER):  # the marker is made first of all
        raise ForeignDirectoryError(f"{path}: holds {min(names)!r} and more that precompile did not make; {advice}")
