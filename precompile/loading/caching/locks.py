"""File locks that end with their owner, however it ends, and that say how far the owner is.

The kernel keeps the lock (flock) with an open file, so threads of one process exclude each other as processes do. A
process that is forked meanwhile closes its copy at once.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from precompile.errors import BusyError, FormatError, StorageError
from precompile.format.files import read_whole

_log = logging.getLogger("precompile")
_FIRST_PAUSE_SECONDS = 0.01
_PAUSE_SECONDS = 0.25
_LOG_SECONDS = 30.0
_NOTE_BYTES = 1 << 12

_held: set[int] = set()
_guard = threading.Lock()


def _before_fork() -> None:
    _guard.acquire()


def _after_in_parent() -> None:
    _guard.release()


def _after_in_child() -> None:
    global _guard
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()
    _guard = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lock, and how far it is."""

    pid: int
    host: str
    since: str
    stage: str = "begins"
    done_bytes: int = 0
    total_bytes: int = 0

    def __str__(self) -> str:
        state = f", {found}" if (found := self.state) else ""
        return f"pid {self.pid} on {self.host} (since {self.since}{state}; {self.progress})"

    @property
    def progress(self) -> str:
        if not self.total_bytes:
            return self.stage
        return f"{self.stage}, {self.done_bytes / 1e6:,.1f} of {self.total_bytes / 1e6:,.1f} MB"

    @property
    def state(self) -> str:
        """`stopped`, `sleeping`, … as the kernel says; nothing for a process that cannot be seen from here."""
        if self.host != socket.gethostname():
            return ""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text(errors="replace").splitlines():
                if line.startswith("State:"):
                    return line.partition("(")[2].rstrip(")")
        return ""


class HeldLock:
    """A lock file that this process holds, until `release` or until the process ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._let_go = weakref.finalize(self, _let_go, descriptor, os.getpid())
        self._let_go.atexit = False
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._owner = Owner(os.getpid(), socket.gethostname(), now)
        self.note(self._owner.stage)

    def note(self, stage: str, done_bytes: int = 0, total_bytes: int = 0) -> None:
        """Say how far this is. Only for others to read, so a full disk is no reason to fail."""
        self._owner = replace(self._owner, stage=stage, done_bytes=done_bytes, total_bytes=total_bytes)
        text = json.dumps(asdict(self._owner)).encode()[:_NOTE_BYTES].ljust(_NOTE_BYTES)
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, text, 0)

    def release(self, *, remove: bool = False) -> None:
        """Let go; `remove` also takes the lock file away."""
        if remove and self._let_go.alive and self._owner.pid == os.getpid():
            self.path.unlink(missing_ok=True)
        self._let_go()


def _let_go(descriptor: int, pid: int) -> None:
    import fcntl

    if pid != os.getpid():
        return  # a forked child: its copy is closed already
    with _guard:
        _held.discard(descriptor)
        # Unlocked, not only closed: a child that is between fork and exec has a copy.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def try_lock(path: Path) -> HeldLock | None:
    """The lock, or None while somebody holds it. Raises StorageError where the file system has no locks."""
    import fcntl

    while True:
        with _guard:
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptor = os.open(path, flags, 0o600)
            except OSError as error:
                raise StorageError(f"cannot open {path}: {error.strerror}") from None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except OSError as error:
                os.close(descriptor)
                raise StorageError(f"cannot lock {path}: {error.strerror}; choose another directory") from None
            if _is_at(descriptor, path):
                _held.add(descriptor)
                break
            os.close(descriptor)  # whoever had it has removed the file
    return HeldLock(path, descriptor)


@contextlib.contextmanager
def locked(path: Path, *, what: str, stall_seconds: float, guards: Path | None = None) -> Iterator[HeldLock]:
    """Hold the lock, after waiting for whoever has it as long as it makes progress.

    what: what is waited for, in logs. guards: when that is not there at the end, the lock file goes, too.
    Raises BusyError when the owner makes no progress for `stall_seconds`.
    """
    lock = _acquire(path, what, stall_seconds)
    try:
        yield lock
    finally:
        lock.release(remove=guards is not None and not guards.exists())


def read_owner(path: Path) -> Owner | None:
    """What the owner of a lock wrote last; None when that cannot be read."""
    try:
        found = json.loads(read_whole(path, _NOTE_BYTES))
        kinds = {"pid": int, "host": str, "since": str, "stage": str, "done_bytes": int, "total_bytes": int}
        if all(type(found[name]) is kind for name, kind in kinds.items()):
            return Owner(**{name: found[name] for name in kinds})
    except (OSError, ValueError, KeyError, TypeError, RecursionError, FormatError):
        pass
    return None


def _acquire(path: Path, what: str, stall_seconds: float) -> HeldLock:
    pause_seconds, seen = _FIRST_PAUSE_SECONDS, read_owner(path)
    changed_at = logged_at = time.monotonic()
    while (lock := try_lock(path)) is None:
        now, owner = time.monotonic(), read_owner(path)
        if owner != seen:
            seen, changed_at = owner, now
        who = str(owner) if owner else "another process"
        if now - changed_at >= stall_seconds:
            stuck = f"{who} has the lock and made no progress for {now - changed_at:,.0f} s"
            raise BusyError(f"{path}: {what}: {stuck}; {_advice(owner)}")
        if now - logged_at >= _LOG_SECONDS:
            logged_at = now
            level = logging.INFO if now - changed_at < _LOG_SECONDS else logging.WARNING
            _log.log(level, "%s: waiting for %s; no progress for %.0f s", what, who, now - changed_at)
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS)
    return lock


def _advice(owner: Owner | None) -> str:
    if owner is None or owner.host != socket.gethostname():  # in another container the number means another process
        return "continue it or end it there"
    return f"continue it (kill -CONT {owner.pid}) or end it (kill -9 {owner.pid})"


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
