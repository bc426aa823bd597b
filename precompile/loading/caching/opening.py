"""Opening a dataset through the cache."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from precompile.errors import DatasetNotFoundError, FormatError, NoRoomError
from precompile.format.generation import read_generation
from precompile.format.stored import Stored
from precompile.loading.caching.directory import CacheDirectory
from precompile.loading.caching.entries import Entry, Wanted, read_entry
from precompile.loading.caching.locks import locked
from precompile.loading.caching.options import Cache
from precompile.loading.caching.staging import stage

_log = logging.getLogger("precompile")
_ATTEMPTS = 5


def open_cached(
    root: Path, generation: int | None, fields: str | Sequence[str] | None, split: str | None, cache: Cache,
    opened_before: Path | None,
) -> Stored:  # fmt: skip
    """The dataset's files in the cache, staged first where they are missing.

    opened_before: the `root` of what an earlier process opened for the same dataset; it is opened at once when it is
    still there. Where no array field is wanted, or where there is no room and `if_full` is `disk`, the files are
    the dataset's own. Raises as `staging.add`.
    """
    if opened_before == root:
        return Stored(root, generation)
    if opened_before is not None and (stored := _reopened(opened_before, generation, cache)) is not None:
        return stored
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            return _open(Wanted.of(root, read_generation(root, generation), fields, split), cache)
        except _GoneAgain:
            if not attempts_left:
                raise DatasetNotFoundError(
                    f"{cache.path}: {root} was staged {_ATTEMPTS} times, and each time dropped before it was opened"
                ) from None
        except DatasetNotFoundError:
            if not attempts_left or generation is not None:
                raise  # else: a build replaced and removed the generation meanwhile
    raise AssertionError


class _GoneAgain(Exception):
    """An entry was dropped before it could be opened, or damaged."""


def _open(wanted: Wanted, cache: Cache) -> Stored:
    if wanted.fields == ():
        return Stored(wanted.root, wanted.manifest.generation)  # columns are in the index, which is small and mapped
    directory = CacheDirectory(cache.path)
    try:
        entry, _ = stage(directory, wanted, cache)
    except NoRoomError as error:
        if cache.if_full == "error":
            raise
        _log.warning("%s: reads from disk: %s", wanted.root, error)
        return Stored(wanted.root, wanted.manifest.generation)
    try:
        return _checked(entry, wanted)
    except (DatasetNotFoundError, FormatError):
        pass
    _remove_if_damaged(directory, entry, wanted, cache)
    raise _GoneAgain


def _remove_if_damaged(directory: CacheDirectory, entry: Entry, wanted: Wanted, cache: Cache) -> None:
    """Even if somebody has it open: what is mapped stays readable, and others can use what is staged anew.

    It is looked at again with the lock, without which another process may have mended or dropped it meanwhile.
    """
    lock, what = directory.entry_lock(entry.name), f"staging {wanted}"
    with locked(lock, what=what, stall_seconds=cache.stall_seconds, guards=entry.path):
        try:
            _checked(entry, wanted)
        except (DatasetNotFoundError, FormatError) as error:
            if entry.path.exists():
                _log.warning("%s: was damaged and is staged again: %s", entry.path, error)
            directory.discard(entry.path, entry.name)


def _checked(entry: Entry, wanted: Wanted) -> Stored:
    stored = _open_entry(entry, wanted.manifest.generation)
    if stored.manifest.fingerprint != wanted.manifest.fingerprint:
        raise FormatError(f"{entry.path}: expected a copy of {wanted}, found another dataset")
    return stored


def _reopened(path: Path, generation: int | None, cache: Cache) -> Stored | None:
    try:
        directory = CacheDirectory(cache.path, make=False)
        return _open_entry(read_entry(directory, path.name), generation)
    except (DatasetNotFoundError, FormatError):
        return None


def _open_entry(entry: Entry, generation: int | None) -> Stored:
    stored = Stored(entry.path, generation)
    entry.touch()
    return stored
