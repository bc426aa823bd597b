"""Room on the RAM disk, and memory: stated before anything is taken, then reserved before anything is copied."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from precompile import machine
from precompile.errors import NoRoomError, PrecompileError, StorageError
from precompile.loading.caching import unshared

STEP_BYTES = 256 << 20
"""Reserved by one call: between two of them an interrupt is heard, and memory that others took is seen."""
MIN_RESERVE_BYTES = 64 << 20
"""Memory that stays free whatever the user says: whoever stages needs some, too."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM}
_DEFAULT_SHARE = 8


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that can be taken in a folder."""

    free_bytes: int
    """What the file system has."""
    memory_bytes: int | None
    """What the container can still allocate; None when the folder is not in memory."""
    reserve_bytes: int
    """Memory that stays free for training."""

    @property
    def have_bytes(self) -> int:
        if self.memory_bytes is None:
            return self.free_bytes
        return max(0, min(self.free_bytes, self.memory_bytes - self.reserve_bytes))

    def __str__(self) -> str:
        text = f"{size_text(self.free_bytes)} free there"
        if self.memory_bytes is not None:
            text += f", {size_text(self.memory_bytes)} of memory, of which {size_text(self.reserve_bytes)} stay free"
        return text


def room(path: Path, reserve_bytes: int | None = None) -> Room:
    """Of the file system of `path`; where that is a RAM disk, memory counts too.

    reserve_bytes: None is an eighth of the container's. It is never less than MIN_RESERVE_BYTES.
    """
    memory = machine.memory()
    if reserve_bytes is None:
        reserve_bytes = min(memory.total_bytes, memory.cgroup_limit_bytes or memory.total_bytes) // _DEFAULT_SHARE
    reserve_bytes = max(reserve_bytes, MIN_RESERVE_BYTES)
    available = memory.available_bytes if machine.is_tmpfs(path) else None
    return Room(machine.free_bytes(path), available, reserve_bytes)


def need_bytes(sizes: Mapping[str, int]) -> int:
    """Whole pages, and one for every file and folder."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(-(-size // page) * page for size in sizes.values()) + page


def check_room(path: Path, need: int, reserve_bytes: int | None, what: str) -> None:
    """Raises NoRoomError, with need and have."""
    if need > (found := room(path, reserve_bytes)).have_bytes:
        raise no_room(path, need, found, what)


def no_room(path: Path, need: int, found: Room, what: str) -> NoRoomError:
    return NoRoomError(
        f"{path}: no room for {what}: need {size_text(need)}, have {size_text(found.have_bytes)} ({found}; "
        "reserve_bytes or --reserve says how much). Stage less (a split, fields), drop entries "
        "(`precompile cache drop`), enlarge the RAM disk, or read from disk: Cache(if_full='disk')"
    )


def failed_on_the_way(error: OSError, path: Path, need: int, reserve_bytes: int | None, what: str) -> PrecompileError:
    """A disk that became full is a NoRoomError, too; have is what there is once the half-made entry is gone."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return no_room(path, need, room(path, reserve_bytes), f"{what} ({reason})")
    return StorageError(f"cannot write {what} to {path}: {reason}")


def storage_error(error: OSError, message: str) -> PrecompileError:
    """NoRoomError when a disk is full, also of inodes; else StorageError."""
    return NoRoomError(message) if error.errno in _FULL else StorageError(message)


def reserve(
    folder: Path, sizes: Mapping[str, int], check: Callable[[int], None], on_step: Callable[[int], None]
) -> None:
    """Make the files, of these sizes, with all their pages.

    check: called with the bytes that are still to be taken, before each step. on_step: with the bytes reserved so far.
    """
    left, done, checked = need_bytes(sizes), 0, -STEP_BYTES
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with unshared.opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
            for start in range(0, size, STEP_BYTES):
                if done - checked >= STEP_BYTES:
                    check(left)
                    checked = done
                step = min(STEP_BYTES, size - start)
                os.posix_fallocate(descriptor, start, step)
                left, done = left - step, done + step
                on_step(done)


def size_text(num_bytes: int) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:,.1f} {name}"
    return f"{num_bytes / 1e3:,.1f} kB"
