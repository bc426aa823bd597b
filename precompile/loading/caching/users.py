"""Which processes have an entry open: those that hold its lease, and those they forked."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from precompile.format.manifest import MANIFEST_NAME


class Users:
    """One look at all processes; those of other users cannot be seen.

    A lease is an open file, so its descriptors in /proc name every holder; /proc/locks names only the one that took
    it first, and nothing at all inside many containers.
    """

    def __init__(self) -> None:
        self._pids: dict[tuple[int, int], set[int]] = {}
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir("/proc")
        for pid in (int(name) for name in names if name.isdecimal()):
            for key in _open_manifests(pid):
                self._pids.setdefault(key, set()).add(pid)

    def of(self, generation_dir: Path) -> tuple[int, ...]:
        """Process ids that have the generation's manifest open, ascending."""
        try:
            found = os.stat(generation_dir / MANIFEST_NAME)
        except OSError:
            return ()
        return tuple(sorted(self._pids.get((found.st_dev, found.st_ino), ())))


def users_of(generation_dir: Path) -> list[int]:
    """Of one generation, now."""
    return list(Users().of(generation_dir))


def _open_manifests(pid: int) -> list[tuple[int, int]]:
    """Device and inode of each."""
    keys = []
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
        for item in descriptors:
            with contextlib.suppress(OSError):
                if os.readlink(item.path).endswith(MANIFEST_NAME):
                    found = os.stat(item.path)
                    keys.append((found.st_dev, found.st_ino))
    return keys
