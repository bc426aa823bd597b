"""What a cache holds, for people."""

from __future__ import annotations

from dataclasses import dataclass

from precompile.loading.caching.directory import CacheDirectory
from precompile.loading.caching.dropping import disk_bytes
from precompile.loading.caching.entries import Entry, Facts, list_entries
from precompile.loading.caching.locks import read_owner, try_lock
from precompile.loading.caching.users import users_of


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry, whole or not."""

    name: str
    state: str
    """`current`, `stale` (another generation is the current one now), `source gone`, `damaged`, `being staged`, or
    `half-made` (whoever staged it died; the next one to stage anything sweeps it)."""
    num_bytes: int
    """What it takes of the file system."""
    facts: Facts | None = None
    """None where it is not whole."""
    used_at: float = 0.0
    """When it was opened last, in seconds since 1970."""
    users: tuple[int, ...] = ()
    """Processes that have it open, as far as they can be seen."""
    is_in_use: bool = False
    progress: str = ""
    """Who stages it, and how far that is."""


def survey(directory: CacheDirectory) -> list[Listed]:
    """Complete entries first. Changes nothing."""
    whole = [_whole(entry) for entry in list_entries(directory)]
    return whole + [_half(directory, name) for name in directory.halves()]


def _whole(entry: Entry) -> Listed:
    state = "damaged" if entry.facts is None else entry.source_state()
    num_bytes, users = disk_bytes(entry.path), tuple(users_of(entry.generation_dir))
    return Listed(entry.name, state, num_bytes, entry.facts, entry.used_at, users, entry.is_in_use)


def _half(directory: CacheDirectory, name: str) -> Listed:
    num_bytes = disk_bytes(directory.half(name))
    path = directory.entry_lock(name)
    if path.exists() and (lock := try_lock(path)) is None:
        return Listed(name, "being staged", num_bytes, progress=str(read_owner(path) or "another process"))
    if path.exists() and lock is not None:
        lock.release()
    return Listed(name, "half-made", num_bytes)
