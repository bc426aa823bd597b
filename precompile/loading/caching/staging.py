"""Staging: one process copies, the others wait for it; what is not complete is never seen."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from precompile import machine
from precompile.errors import DatasetNotFoundError, ForeignDirectoryError, FormatError, PrecompileError
from precompile.format.generation import read_current
from precompile.format.manifest import Manifest
from precompile.format.stored import Stored
from precompile.loading.caching import room
from precompile.loading.caching.copying import Job, Meter, run, write_over
from precompile.loading.caching.directory import CacheDirectory, remove_tree
from precompile.loading.caching.dropping import drop_stale, sweep
from precompile.loading.caching.entries import (
    FACTS_NAME,
    USED_NAME,
    Entry,
    Facts,
    Wanted,
    find_entry,
    manifest_digest,
    read_entry,
)
from precompile.loading.caching.locks import HeldLock, Owner, locked
from precompile.loading.caching.options import Cache
from precompile.loading.caching.part import PartCopy
from precompile.loading.caching.unshared import in_no_child
from precompile.loading.caching.whole import WholeCopy, manifest_paths

_log = logging.getLogger("precompile")
_NOTE_SECONDS = 1.0
ATTEMPTS = 5
Done = TypeVar("Done")

OnProgress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all, in the thread that asked."""


class Copy(Protocol):
    """WholeCopy or PartCopy."""

    sizes: dict[str, int]

    @property
    def copied_bytes(self) -> int: ...
    def jobs(self, folder: Path) -> list[Job]: ...
    def finish(self, folder: Path) -> Manifest: ...


def add(
    root: Path, cache: Cache, *, generation: int | None = None, fields: str | Sequence[str] | None = None,
    split: str | None = None, on_progress: OnProgress | None = None,
) -> tuple[Entry, bool]:  # fmt: skip
    """The entry that has what is wanted, and whether it was staged now.

    Raises NoRoomError, ForeignDirectoryError, BusyError (another process that stages is stuck), FormatError (the
    dataset is damaged), DatasetNotFoundError, StorageError, or ValueError (no such field or split).
    """

    def stage_it(wanted: Wanted) -> tuple[Entry, bool]:
        if wanted.fields == ():
            arrays = ", ".join(spec.name for spec in wanted.manifest.schema.arrays)
            raise ValueError(f"{root}: columns alone need no cache, got fields={fields!r}; choose from {arrays}")
        return stage(CacheDirectory(cache.path), wanted, cache, on_progress)

    return with_wanted(root, generation, fields, split, stage_it)


def with_wanted(
    root: Path, generation: int | None, fields: str | Sequence[str] | None, split: str | None,
    do: Callable[[Wanted], Done],
) -> Done:  # fmt: skip
    """What `do` returns; it is called again when the dataset was replaced under its hands. Raises what it raises."""
    for attempts_left in reversed(range(ATTEMPTS)):
        wanted = Wanted.find(root, generation, fields, split)
        try:
            return do(wanted)
        except (FormatError, DatasetNotFoundError):
            if not attempts_left or not wanted.is_replaced(generation):
                raise
    raise AssertionError


def stage(
    directory: CacheDirectory, wanted: Wanted, cache: Cache, on_progress: OnProgress | None = None
) -> tuple[Entry, bool]:
    """As `add`. Whoever comes while another process stages the same waits for it."""
    if (found := find_entry(directory, wanted)) is not None:
        return found, False
    path, guards, what = directory.entry_lock(wanted.name), directory.entry(wanted.name), f"staging {wanted}"
    with locked(path, what=what, stall_seconds=cache.stall_seconds, guards=guards) as lock:
        if (found := find_entry(directory, wanted)) is not None:
            return found, False
        if (warning := no_ram_disk(directory.path)) is not None:
            _log.warning("%s", warning)
        began = time.monotonic()
        entry = _Staging(directory, wanted, cache, lock, on_progress).run()
        assert entry.facts is not None
        seconds, size = time.monotonic() - began, room.size_text(entry.facts.num_bytes)
        _log.info("%s: staged %s in %s in %.1f s", wanted, size, entry.path, seconds)
    return entry, True


def no_ram_disk(path: Path) -> str | None:
    """A warning, where `path` is not in memory."""
    kind = machine.filesystem(path)
    if kind in ("tmpfs", "ramfs", "unknown"):
        return None
    return f"{path}: is on {kind}, not on a RAM disk: copies there are in memory as far as the page cache keeps them"


class _Staging:
    """One entry, staged by this process, which holds its lock."""

    def __init__(
        self, directory: CacheDirectory, wanted: Wanted, cache: Cache, lock: HeldLock, on_progress: OnProgress | None
    ) -> None:
        self._directory, self._wanted, self._cache, self._lock = directory, wanted, cache, lock
        self._on_progress = on_progress or (lambda done_bytes, total_bytes: None)
        self._what = str(wanted)
        self._noted_at = 0.0

    def run(self) -> Entry:
        source = self._open_source()
        with in_no_child(source.lease.file if source.lease else None):
            return self._stage(source)

    def _stage(self, source: Stored) -> Entry:
        name, folder = self._wanted.name, self._directory.half(self._wanted.name)
        self._make_place(name)
        self._lock.note("checks the index")

        def note(done_bytes: int, total_bytes: int) -> None:
            self._note("checks the index", done_bytes, total_bytes)

        copy: Copy = WholeCopy(source) if self._wanted.is_everything else PartCopy(source, self._wanted, note)
        need = room.need_bytes({**copy.sizes, FACTS_NAME: 1})
        facts = self._facts(need).to_json()
        try:
            self._reserve(folder, {**copy.sizes, FACTS_NAME: len(facts), USED_NAME: 0}, need)
            manifest = self._copy(folder, copy)
            write_over(folder / FACTS_NAME, facts)
            for path in manifest_paths(manifest.generation):
                write_over(folder / path, manifest.to_json().encode("utf-8", "surrogateescape"))
            os.rename(folder, self._directory.entry(name))
        except BaseException as error:
            remove_tree(folder)
            if isinstance(error, OSError) and not isinstance(error, PrecompileError):
                where, reserve_bytes = self._directory.path, self._cache.reserve_bytes
                raise room.failed_on_the_way(error, where, need, reserve_bytes, self._what) from None
            raise
        return read_entry(self._directory, name)

    def _open_source(self) -> Stored:
        """Its lease keeps the generation from being removed while it is copied."""
        source = Stored(self._wanted.real_path, self._wanted.manifest.generation)
        if manifest_digest(source.manifest) != self._wanted.digest:
            raise DatasetNotFoundError(f"{self._wanted.root}: was replaced by another dataset meanwhile; try again")
        return source

    def _make_place(self, name: str) -> None:
        """What has the entry's name and is not one (its facts are damaged) was ours, and goes."""
        path = self._directory.entry(name)
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise ForeignDirectoryError(f"{path}: expected an entry of the cache, found something else; remove it")
        half = self._directory.half(name)
        if half.is_symlink() or (half.exists() and not half.is_dir()):
            raise ForeignDirectoryError(f"{half}: expected a half-made entry, found something else; remove it")
        if path.exists():
            _log.warning("%s: is damaged; it is staged again", path)
            self._directory.discard(path, name)

    def _reserve(self, folder: Path, sizes: dict[str, int], need: int) -> None:
        """Alone: of two that see the same room, one would fail in the middle."""
        path, reserve_bytes = self._directory.path, self._cache.reserve_bytes
        self._lock.note("waits to reserve room")
        stall_seconds = self._cache.stall_seconds
        what = f"reserving room in {path}"

        def waits(owner: Owner) -> None:  # who waits for this process waits for that one
            stage = f"waits to reserve room: pid {owner.pid} {owner.stage}"
            self._lock.note(stage, owner.done_bytes, owner.total_bytes)

        with locked(self._directory.lock, what=what, stall_seconds=stall_seconds, on_wait=waits) as alone:
            for lock in (alone, self._lock):
                lock.note("deletes what was left or is stale")
            sweep(self._directory, self._lock)
            drop_stale(self._directory, self._wanted, read_current(self._wanted.real_path))
            room.check_room(path, need, reserve_bytes, self._what)

            def check(left_bytes: int) -> None:
                room.check_room(
                    path, left_bytes, reserve_bytes, f"the last {room.size_text(left_bytes)} of {self._what}"
                )

            def note(done_bytes: int) -> None:
                for lock in (alone, self._lock):
                    lock.note("reserves room", done_bytes, need)

            folder.mkdir(mode=0o700)
            room.reserve(folder, sizes, check, note)

    def _copy(self, folder: Path, copy: Copy) -> Manifest:
        def watch(meter: Meter) -> None:
            self._on_progress(meter.done_bytes, meter.total_bytes)
            self._note("copies", meter.done_bytes, meter.total_bytes)

        meter = Meter(copy.copied_bytes)
        self._lock.note("copies", 0, meter.total_bytes)
        run(copy.jobs(folder), meter, watch)
        watch(meter)
        return copy.finish(folder)

    def _note(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Now and then."""
        if time.monotonic() - self._noted_at >= _NOTE_SECONDS:
            self._noted_at = time.monotonic()
            self._lock.note(stage, done_bytes, total_bytes)

    def _facts(self, num_bytes: int) -> Facts:
        wanted = self._wanted
        return Facts(
            root=wanted.real_root, generation=wanted.manifest.generation, manifest=wanted.digest,
            fingerprint=wanted.manifest.fingerprint, fields=wanted.fields, split=wanted.split, num_bytes=num_bytes,
            pid=os.getpid(), host=socket.gethostname(), uid=os.geteuid(), staged_at=time.time(),
        )  # fmt: skip
