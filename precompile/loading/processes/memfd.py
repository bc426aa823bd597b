"""Files in memory that belong to one process, which others find in /proc/<pid>/fd by their name.

They have no name on disk, so nothing is left behind however the process ends.
"""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def create(name: str) -> int | None:
    """A new file descriptor, closed on exec; None where there is no such thing (not Linux, or it is forbidden)."""
    if not hasattr(os, "memfd_create") or not _PROC.joinpath("self/fd").exists():
        return None
    try:
        return os.memfd_create(name)
    except OSError:
        return None


def open_of(pid: int, name: str, flags: int = os.O_RDONLY) -> int | None:
    """Open the file `name` of another process; None where it has none, is gone, or belongs to somebody else."""
    folder = _PROC / str(pid) / "fd"
    link = f"/memfd:{name} (deleted)"
    try:
        for number in os.listdir(folder):
            path = folder / number
            if _target(path) == link:
                return os.open(path, flags | os.O_CLOEXEC)
    except OSError:
        pass
    return None


def _target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""
