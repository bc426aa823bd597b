"""What a cache holds, for people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from precompile.loading.caching.directory import CacheDirectory
from precompile.loading.caching.dropping import disk_bytes
from precompile.loading.caching.entries import Entry, Facts, list_entries
from precompile.loading.caching.locks import read_owner, try_lock
from precompile.loading.caching.users import Users


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry, whole or not."""

    name: str
    state: str
    """`current`, `stale` (another generation is the current one now), `source gone`, `damaged`, `unreadable` (this
    process may not read it), `being staged`, `half-made` (whoever staged it died; the next one to stage anything
    sweeps it), or `dropped` (it is being deleted, or could not be)."""
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
    """Complete entries first. Changes nothing. What others take away meanwhile is left out."""
    entries, users = list_entries(directory), Users()
    found = [(entry.path, _whole(entry, users)) for entry in entries]
    found += [(directory.half(name), _half(directory, name)) for name in directory.halves()]
    found += [(path, _dropped(path)) for path in directory.gone()]
    return [listed for path, listed in found if path.is_dir()]


def _whole(entry: Entry, users: Users) -> Listed:
    state = entry.source_state() if entry.facts else "damaged" if entry.unreadable is None else "unreadable"
    num_bytes, pids = disk_bytes(entry.path), users.of(entry.generation_dir)
    return Listed(entry.name, state, num_bytes, entry.facts, entry.used_at, pids, entry.is_in_use)


def _half(directory: CacheDirectory, name: str) -> Listed:
    num_bytes, path = disk_bytes(directory.half(name)), directory.entry_lock(name)
    if path.exists():
        lock = try_lock(path)
        if lock is None:
            return Listed(name, "being staged", num_bytes, progress=str(read_owner(path) or "another process"))
        lock.release(remove=not directory.half(name).exists() and not directory.entry(name).exists())
    return Listed(name, "half-made", num_bytes)


def _dropped(path: Path) -> Listed:
    return Listed(path.name, "dropped", disk_bytes(path))
