"""Opening a dataset through the cache."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from precompile.errors import DatasetNotFoundError, FormatError, NoRoomError
from precompile.format.files import UnreadableError
from precompile.format.generation import generation_dir
from precompile.format.lease import Lease, take_lease
from precompile.format.schema import Schema
from precompile.format.stored import Stored
from precompile.loading.caching.directory import CacheDirectory
from precompile.loading.caching.entries import Entry, Wanted, read_entry
from precompile.loading.caching.locks import locked
from precompile.loading.caching.options import Cache
from precompile.loading.caching.staging import ATTEMPTS, stage, with_wanted

_log = logging.getLogger("precompile")


class StoredEntry(Stored):
    """An entry, opened.

    source_lease: keeps the generation of the dataset itself, as without a cache: the entry may be dropped by force, and
    a worker that starts then stages it again. None where there are no leases, or where the dataset has gone.
    """

    def __init__(self, entry: Entry, generation: int | None, source_lease: Lease | None) -> None:
        self.source_lease = source_lease
        super().__init__(entry.path, generation)
        entry.touch()


def open_cached(
    root: Path, generation: int | None, fields: str | Sequence[str] | None, split: str | None, cache: Cache,
    opened_before: Path | None, check: Callable[[Schema], None] = lambda schema: None,
) -> Stored:  # fmt: skip
    """The dataset's files in the cache, staged first where they are missing.

    opened_before: the `root` of what an earlier process opened for the same dataset; it is opened at once when it is
    still there. check: called with the dataset's schema before anything is staged. Where no array field is wanted, or
    where there is no room and `if_full` is `disk`, the files are the dataset's own. Raises as `staging.add`.
    """
    if opened_before == root:
        return Stored(root, generation)
    if opened_before is not None and (stored := _reopened(opened_before, generation, cache)) is not None:
        return stored

    def open_it(wanted: Wanted) -> Stored:
        check(wanted.manifest.schema)
        for _ in range(ATTEMPTS):
            if (stored := _open(wanted, cache)) is not None:
                return stored
        raise DatasetNotFoundError(
            f"{cache.path}: {root} was staged {ATTEMPTS} times, and each time dropped before it was opened"
        )

    return with_wanted(root, generation, fields, split, open_it)


def _open(wanted: Wanted, cache: Cache) -> Stored | None:
    """None when the entry was dropped before it could be opened, or was damaged."""
    generation = wanted.manifest.generation
    if wanted.fields == ():
        return Stored(wanted.root, generation)  # columns are in the index, which is small and mapped
    source_lease = take_lease(generation_dir(wanted.real_path, generation))
    try:
        directory = CacheDirectory(cache.path)
        entry, _ = stage(directory, wanted, cache)
    except NoRoomError as error:
        if cache.if_full == "error":
            raise
        _log.warning("%s: reads from disk: %s", wanted.root, error)
        return Stored(wanted.root, generation)
    try:
        return _checked(entry, wanted, source_lease)
    except UnreadableError:
        raise  # it says nothing of the entry, which others may have open
    except (DatasetNotFoundError, FormatError):
        pass
    _remove_if_damaged(directory, entry, wanted, cache)
    return None


def _remove_if_damaged(directory: CacheDirectory, entry: Entry, wanted: Wanted, cache: Cache) -> None:
    """Even if somebody has it open: what is mapped stays readable, and others can use what is staged anew.

    It is looked at again with the lock, without which another process may have mended or dropped it meanwhile.
    """
    path, what = directory.entry_lock(entry.name), f"staging {wanted}"
    with locked(path, what=what, stall_seconds=cache.stall_seconds, guards=entry.path) as lock:
        lock.note("looks for damage")
        try:
            _checked(entry, wanted, None)
        except UnreadableError:
            raise
        except (DatasetNotFoundError, FormatError) as error:
            if entry.path.exists():
                _log.warning("%s: was damaged and is staged again: %s", entry.path, error)
            directory.discard(entry.path, entry.name)


def _checked(entry: Entry, wanted: Wanted, source_lease: Lease | None) -> Stored:
    stored = StoredEntry(entry, wanted.manifest.generation, source_lease)
    if stored.manifest.fingerprint != wanted.manifest.fingerprint:
        raise FormatError(f"{entry.path}: expected a copy of {wanted}, found another dataset")
    return stored


def _reopened(path: Path, generation: int | None, cache: Cache) -> Stored | None:
    try:
        entry = read_entry(CacheDirectory(cache.path, make=False), path.name)
        lease = None
        if entry.facts is not None:
            lease = take_lease(generation_dir(Path(entry.facts.root), entry.facts.generation))
        return StoredEntry(entry, generation, lease)
    except UnreadableError:
        raise
    except (DatasetNotFoundError, FormatError):
        return None
