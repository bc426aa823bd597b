"""One writer for one output directory."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import threading
from collections.abc import Iterator

import filelock

from precompile import machine
from precompile.errors import BusyError, FormatError, StorageError
from precompile.format.files import read_whole
from precompile.format.manifest import MANIFEST_NAME
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.storage import storage_error, storage_errors

_REFRESH_SECONDS = 10.0
_MAX_OWNER_BYTES = 1 << 16
_STALE_SECONDS = 60.0
"""An owner on another host that has not refreshed its mark for so long is taken for dead."""


@contextlib.contextmanager
def locked(dirs: BuildDirs) -> Iterator[None]:
    """Hold the output for one build. Raises BusyError at once, naming the owner, when another build holds it.

    The lock is the kernel's, so it is free again when its owner dies, however it dies. Network file systems may keep
    locks to one host; there the owner also refreshes a file, and one on another host that did so lately is respected.
    """
    lock = _acquire(dirs)
    try:
        with storage_errors(f"cannot write {dirs.work}"):
            dirs.work.mkdir(exist_ok=True)
            is_shared = machine.is_network(dirs.root)
            if is_shared:
                _respect_other_hosts(dirs)
            for left in (*dirs.root.glob(f".{MANIFEST_NAME}.*.tmp"), *dirs.work.glob(".*.tmp")):
                left.unlink()
            mark = _sign(dirs)
        try:
            with _refreshing(dirs) if is_shared else contextlib.nullcontext():
                yield
        finally:
            _take_away(dirs, mark)
    finally:
        lock.release()


def refuse_if_busy(dirs: BuildDirs) -> None:
    """Raises BusyError when a build is at work, before this one spends minutes on listing its source."""
    if dirs.lock.exists():
        _acquire(dirs).release()


def _acquire(dirs: BuildDirs) -> filelock.BaseFileLock:
    lock = filelock.FileLock(dirs.lock, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise BusyError(f"{dirs.root}: {_owner(dirs)} is writing here; run again when it is done") from None
    except NotImplementedError:
        raise StorageError(
            f"cannot lock {dirs.lock}: its file system has no locks (flock); choose another OUT"
        ) from None
    except OSError as error:
        raise storage_error(error, f"cannot lock {dirs.lock}") from None
    return lock


def _sign(dirs: BuildDirs) -> bytes:
    """Say who holds the lock. The file is new: of two hosts that come at once, without common locks, one gets it."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    mark = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now}).encode()
    dirs.owner.unlink(missing_ok=True)
    try:
        with dirs.owner.open("xb") as file:
            file.write(mark)
    except FileExistsError:
        raise BusyError(
            f"{dirs.root}: {_owner(dirs)} has just begun to write here; run again when it is done"
        ) from None
    return mark


def _take_away(dirs: BuildDirs, mark: bytes) -> None:
    with contextlib.suppress(OSError):  # a commit empties the folder
        if dirs.owner.read_bytes() == mark:
            dirs.owner.unlink()


def _owner(dirs: BuildDirs) -> str:
    owner = _read_owner(dirs)
    try:
        return f"another build (pid {owner['pid']} on {owner['host']}, since {owner['since']})"
    except KeyError:
        return "another build"


def _read_owner(dirs: BuildDirs) -> dict[str, object]:
    try:
        owner = json.loads(read_whole(dirs.owner, _MAX_OWNER_BYTES))
        return owner if isinstance(owner, dict) else {}
    except (OSError, ValueError, RecursionError, FormatError):
        return {}


def _respect_other_hosts(dirs: BuildDirs) -> None:
    """Of this host, who holds the lock has it; a mark that nobody can read may be another host's."""
    if not dirs.owner.exists() or _read_owner(dirs).get("host") == socket.gethostname():
        return
    age_seconds = _server_time(dirs) - dirs.owner.stat().st_mtime
    if age_seconds < _STALE_SECONDS:
        raise BusyError(
            f"{dirs.root}: {_owner(dirs)} was writing here {max(0, age_seconds):.0f} s ago; "
            f"run again when it is done, or {_STALE_SECONDS:.0f} s after it died"
        )


def _server_time(dirs: BuildDirs) -> float:
    """What the file server calls now: its clock, not ours, has stamped the owner's file."""
    probe = dirs.work / f".clock.{os.getpid()}.tmp"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink()


@contextlib.contextmanager
def _refreshing(dirs: BuildDirs) -> Iterator[None]:
    done = threading.Event()

    def refresh() -> None:
        while not done.wait(_REFRESH_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(dirs.owner)

    thread = threading.Thread(target=refresh, name="precompile-owner", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
