"""Taking entries away, unless somebody has them open, and what dead processes left."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from precompile.errors import NoRoomError, StorageError
from precompile.format.lease import claim
from precompile.format.manifest import Manifest
from precompile.loading.caching.directory import CacheDirectory, remove_tree
from precompile.loading.caching.entries import Entry, Wanted, list_entries, manifest_digest, read_entry
from precompile.loading.caching.locks import HeldLock, read_owner, try_lock
from precompile.loading.caching.users import users_of

_log = logging.getLogger("precompile")


@dataclass(frozen=True, slots=True)
class Dropped:
    """What became of an entry."""

    name: str
    freed_bytes: int
    """0 when it stays."""
    stays: str
    """Why it stays; "" when it is gone."""
    users: tuple[int, ...] = ()
    """Processes that had it open."""


def drop(directory: CacheDirectory, name: str, *, force: bool = False) -> Dropped:
    """Take one entry away. force: also one in use; its memory is free once they close it, and maps stay readable."""
    path, lock = directory.entry_lock(name), None
    try:
        if (lock := try_lock(path)) is None:
            return Dropped(name, 0, f"its lock is held by {read_owner(path) or 'another process'}")
        lock.note("drops it")
        return _drop(directory, read_entry(directory, name), force)
    except (StorageError, NoRoomError) as error:
        return Dropped(name, 0, str(error))
    finally:
        if lock is not None:
            lock.release(remove=not directory.entry(name).exists())


def _drop(directory: CacheDirectory, entry: Entry, force: bool) -> Dropped:
    if not entry.path.is_dir():
        return Dropped(entry.name, 0, "it is gone already")
    num_bytes = disk_bytes(entry.path)
    with claim(entry.generation_dir) as is_ours:
        users = () if is_ours else tuple(users_of(entry.generation_dir))
        if not is_ours and not force:
            who = f"in use by pid {', '.join(map(str, users))}" if users else "in use"
            return Dropped(entry.name, 0, who, users)
        is_deleted = directory.discard(entry.path, entry.name)  # renamed first: who opens it sees at once that it went
    return Dropped(entry.name, num_bytes if is_deleted else 0, "", users)


def drop_stale(directory: CacheDirectory, wanted: Wanted, current: Manifest) -> None:
    """Drop entries of the same dataset that are neither of its current generation nor of the wanted one."""
    current_digest = manifest_digest(current)
    for entry in list_entries(directory):
        if _is_of_root(entry, wanted) and not _is_of(entry, wanted, current_digest):
            dropped = drop(directory, entry.name)
            if dropped.stays:
                _log.info("%s: is of an older generation, but stays: %s", entry.path, dropped.stays)
            else:
                _log.info("%s: dropped, it was of an older generation", entry.path)


def sweep(directory: CacheDirectory, mine: HeldLock | None = None) -> int:
    """Delete what dead processes left half-made or half-deleted, and their lock files; returns how many were half-made.

    What cannot be deleted stays, with a warning. mine: the lock of an entry that the caller holds: what is half-made
    of it is left over, too.
    """
    names = {*directory.halves(), *set(directory.locks()).difference(directory.entries())}
    swept = sum(_sweep_entry(directory, name, mine) for name in sorted(names))
    for path in directory.gone():
        remove_tree(path)
    return swept


def _sweep_entry(directory: CacheDirectory, name: str, mine: HeldLock | None) -> bool:
    """Whether something half-made was deleted."""
    path, half, lock = directory.entry_lock(name), directory.half(name), None
    is_mine = mine is not None and mine.path == path
    try:
        if not is_mine and (lock := try_lock(path)) is None:
            return False
        return half.is_dir() and not half.is_symlink() and directory.discard(half, name)
    except (StorageError, NoRoomError) as error:
        _log.warning("%s", error)
        return False
    finally:
        if lock is not None:
            lock.release(remove=not directory.entry(name).exists())


def disk_bytes(folder: Path) -> int:
    """What a folder takes of its file system; others may be deleting it."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in (".", *files):
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
    return total


def _is_of_root(entry: Entry, wanted: Wanted) -> bool:
    return entry.facts is not None and entry.facts.root == wanted.real_root


def _is_of(entry: Entry, wanted: Wanted, current_digest: str) -> bool:
    return entry.facts is not None and (entry.facts.is_of(wanted) or entry.facts.manifest == current_digest)
