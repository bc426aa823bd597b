"""Which processes have an entry open: those that hold its lease, and those they forked."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from precompile.format.manifest import MANIFEST_NAME


def users_of(generation_dir: Path) -> list[int]:
    """Process ids that have the generation's manifest open, ascending; those of other users cannot be seen.

    The lease is an open file, so its descriptors in /proc name every holder; /proc/locks names only the one that took
    it first, and nothing at all inside many containers.
    """
    try:
        wanted = os.stat(generation_dir / MANIFEST_NAME)
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []
    return sorted(pid for pid in pids if _has_open(pid, wanted))


def _has_open(pid: int, wanted: os.stat_result) -> bool:
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
        for item in descriptors:
            with contextlib.suppress(OSError):
                if os.readlink(item.path).endswith(MANIFEST_NAME) and os.path.samestat(os.stat(item.path), wanted):
                    return True
    return False
