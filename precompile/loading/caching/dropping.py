"""Taking entries away, unless somebody has them open, and what dead processes left."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from precompile.format.lease import claim
from precompile.format.manifest import Manifest
from precompile.loading.caching.directory import CacheDirectory
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
    lock = try_lock(path := directory.entry_lock(name))
    if lock is None:
        return Dropped(name, 0, f"it is being staged by {read_owner(path) or 'another process'}")
    try:
        entry = read_entry(directory, name)
        if not entry.path.is_dir():
            return Dropped(name, 0, "it is gone already")
        num_bytes, users = disk_bytes(entry.path), tuple(users_of(entry.generation_dir))
        with claim(entry.generation_dir) as is_ours:
            if is_ours or force:
                directory.discard(entry.path, name)  # renamed first, so who opens it sees at once that it is gone
        if is_ours or force:
            return Dropped(name, num_bytes, "", users)
        who = f"in use by pid {', '.join(map(str, users))}" if users else "in use"
        return Dropped(name, 0, who, users)
    finally:
        lock.release(remove=not directory.entry(name).exists())


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
    """Delete what dead processes left half-made or half-deleted; returns how many there were.

    mine: the lock of an entry that the caller holds: what is half-made of it is left over, too.
    """
    swept = 0
    for name in directory.halves():
        path = directory.entry_lock(name)
        is_mine = mine is not None and mine.path == path
        lock = mine if is_mine else try_lock(path)
        if lock is not None:
            directory.discard(directory.half(name), name)
            swept += 1
            if not is_mine:
                lock.release(remove=not directory.entry(name).exists())
    for path in directory.gone():
        directory.discard(path, path.name[1:].rpartition("..")[0])
    return swept


def disk_bytes(folder: Path) -> int:
    """What a folder takes of its file system."""
    total = 0
    for path in (folder, *folder.rglob("*")):
        try:
            total += path.lstat().st_blocks * 512
        except OSError:
            continue
    return total


def _is_of_root(entry: Entry, wanted: Wanted) -> bool:
    return entry.facts is not None and entry.facts.root == wanted.real_root


def _is_of(entry: Entry, wanted: Wanted, current_digest: str) -> bool:
    return entry.facts is not None and (entry.facts.is_of(wanted) or entry.facts.manifest == current_digest)
