"""Leases: a generation that somebody has open is not removed.

A lease is a shared advisory lock (flock) on the generation's manifest, through a descriptor of its own. The kernel
drops it when the last process that inherited the descriptor closes it or ends, however it ends. Who removes a
generation first takes the exclusive lock. Where the file system has no such locks there are no leases.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from precompile.errors import FormatError
from precompile.format.files import READ_ONLY, OpenFile, open_regular
from precompile.format.manifest import MANIFEST_NAME

_ATTEMPTS = 50
_PAUSE_SECONDS = 0.01
_SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EIO}
"""Errors that say nothing of the file."""


class Lease:
    """Owns a descriptor, and with it the lock, until it is garbage collected. Not picklable; inherited by fork.

    file: closed, and never unlocked: a forked child that lets go must leave the parent's lock alone.
    """

    def __init__(self, descriptor: int) -> None:
        self.file = OpenFile(descriptor)

    @property
    def descriptor(self) -> int:
        return self.file.descriptor


def take_lease(directory: Path) -> Lease | None:
    """A lease on the generation in `directory`; never fails, and waits for half a second at most.

    None when there is no manifest to lock (the generation is being removed, or is damaged), when the file system
    has no locks, or when somebody keeps the exclusive lock.
    """
    path = directory / MANIFEST_NAME
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        try:
            lease = Lease(open_regular(path))
        except (OSError, FormatError):
            return None
        try:
            if not _lock(lease.descriptor, shared=True):
                return None
        except BlockingIOError:
            continue
        if _is_still_at(lease.descriptor, path):
            return lease
    return None


@contextlib.contextmanager
def claim(directory: Path) -> Iterator[bool]:
    """For who removes a generation: True while no reader holds a lease or can take one, False when one does.

    Inside, rename the directory: then who opens it meanwhile sees at once that it is gone. Delete the renamed one
    afterwards, since NFS keeps the files that are open, as the locked one is here. True also where there are no
    locks, or no manifest to lock; False when this process is too short of descriptors or memory to find out.
    """
    with contextlib.ExitStack() as until_the_end:
        alone = True
        try:
            descriptor = _open_to_claim(directory / MANIFEST_NAME)
        except OSError as error:
            descriptor, alone = None, error.errno not in _SHORT
        if descriptor is not None:
            until_the_end.callback(os.close, descriptor)
            try:
                if not _lock(descriptor, shared=False):
                    until_the_end.close()
            except BlockingIOError:
                alone = False
        yield alone


def is_in_use(directory: Path) -> bool:
    """Whether a reader, in this process or another one, holds a lease; False where there are no locks."""
    with claim(directory) as alone:
        return not alone


def _lock(descriptor: int, *, shared: bool) -> bool:
    """False where there are no locks; raises BlockingIOError when somebody else's lock is in the way."""
    try:
        import fcntl

        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError):  # Windows; ENOSYS, EOPNOTSUPP, ENOLCK, EINVAL, … by file system
        return False
    return True


def _is_still_at(descriptor: int, path: Path) -> bool:
    """Whether the locked file is the one that others will lock: it may have been unlinked or replaced meanwhile."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _open_to_claim(path: Path) -> int:
    """For writing where possible: NFS gives an exclusive lock to such descriptors only."""
    with contextlib.suppress(OSError):
        return os.open(path, READ_ONLY | os.O_RDWR)
    return os.open(path, READ_ONLY)
