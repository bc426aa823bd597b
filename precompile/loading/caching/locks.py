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
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from precompile.errors import BusyError, FormatError
from precompile.format.files import OpenFile, open_regular
from precompile.loading.caching import unshared
from precompile.loading.caching.room import storage_error

_log = logging.getLogger("precompile")
_FIRST_PAUSE_SECONDS = 0.01
_PAUSE_SECONDS = 0.25
_LOG_SECONDS = 30.0
_NOTE_BYTES = 1 << 12


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lock, and how far it is. Raises ValueError for values that cannot be, or that would not print."""

    pid: int
    host: str
    since: str
    stage: str = "begins"
    done_bytes: int = 0
    total_bytes: int = 0

    def __post_init__(self) -> None:
        numbers, texts = (self.pid, self.done_bytes, self.total_bytes), (self.host, self.since, self.stage)
        if not all(type(number) is int and 0 <= number < 2**62 for number in numbers) or self.pid < 1:
            raise ValueError(f"pid and bytes must be integers up to 2^62, got {numbers!r}")
        if not all(isinstance(text, str) and text.isprintable() for text in texts):
            raise ValueError(f"host, since and stage must be printable text, got {texts!r}")

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
    """A lock file that this process holds, until `release`, or until nobody refers to this object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: OpenFile | None = None
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._owner = Owner(os.getpid(), socket.gethostname(), now)

    def take(self) -> bool:
        """False while somebody else holds it. Raises StorageError, or NoRoomError when there is none for the file."""
        import fcntl

        while True:
            try:
                self._file = unshared.open_file(self.path, os.O_RDWR | os.O_CREAT)
            except OSError as error:
                raise storage_error(error, f"cannot open {self.path}: {error.strerror}") from None
            try:
                fcntl.flock(self._file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError as error:
                message = f"cannot lock {self.path}: {error.strerror}; choose another directory"
                raise storage_error(error, message) from None
            if _is_at(self._file.descriptor, self.path):
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file.descriptor, _NOTE_BYTES)
                self.note(self._owner.stage)
                return True
            self.release()  # whoever had it has removed the file

    def note(self, stage: str, done_bytes: int = 0, total_bytes: int = 0) -> None:
        """Say how far this is. Only for others to read, so a full disk is no reason to fail."""
        self._owner = replace(self._owner, stage=stage, done_bytes=done_bytes, total_bytes=total_bytes)
        text = json.dumps(asdict(self._owner)).encode()[:_NOTE_BYTES].ljust(_NOTE_BYTES)
        with contextlib.suppress(OSError):
            if self._file is not None:
                os.pwrite(self._file.descriptor, text, 0)

    def release(self, *, remove: bool = False) -> None:
        """Let go; `remove` also takes the lock file away. Does nothing the second time, nor in a forked child."""
        import fcntl

        if (file := self._file) is None or file.descriptor < 0:
            return
        if remove:
            with contextlib.suppress(OSError):
                self.path.unlink()
        # Unlocked, not only closed: a child that is between fork and exec has a copy.
        with contextlib.suppress(OSError):
            fcntl.flock(file.descriptor, fcntl.LOCK_UN)
        unshared.close(file)

    def __del__(self) -> None:
        with contextlib.suppress(ImportError):  # at exit, when the kernel lets go
            self.release()


def try_lock(path: Path) -> HeldLock | None:
    """The lock, or None while somebody holds it. Raises StorageError where the file system has no locks."""
    lock, is_ours = HeldLock(path), False
    try:
        is_ours = lock.take()
        return lock if is_ours else None
    finally:
        if not is_ours:  # also after an interrupt, whose traceback keeps this frame
            lock.release()


class locked:  # noqa: N801
    """Hold the lock, after waiting for whoever has it as long as it makes progress.

    An object with methods, since a generator is not ended by an interrupt that comes just after it has yielded.

    what: what is waited for, in logs. guards: when that is not there at the end, the lock file goes, too.
    on_wait: called with what the other process notes, whenever that changes.
    Raises BusyError when the owner makes no progress for `stall_seconds`.
    """

    def __init__(
        self, path: Path, *, what: str, stall_seconds: float, guards: Path | None = None,
        on_wait: Callable[[Owner], None] = lambda owner: None,
    ) -> None:  # fmt: skip
        self._path, self._what, self._stall_seconds = path, what, stall_seconds
        self._guards, self._on_wait = guards, on_wait
        self._lock: HeldLock | None = None

    def __enter__(self) -> HeldLock:
        try:
            self._lock = self._acquire()
            return self._lock
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            try:
                self._lock.release(remove=self._guards is not None and not self._guards.exists())
            finally:
                self._lock.release()  # after an interrupt

    def _acquire(self) -> HeldLock:
        pause_seconds, seen = _FIRST_PAUSE_SECONDS, read_owner(self._path)
        changed_at = logged_at = time.monotonic()
        while (lock := try_lock(self._path)) is None:
            now, owner = time.monotonic(), read_owner(self._path)
            if owner != seen:
                seen, changed_at = owner, now
                if owner is not None:
                    self._on_wait(owner)
            who = str(owner) if owner else "another process"
            if now - changed_at >= self._stall_seconds:
                stuck = f"{who} has the lock and made no progress for {now - changed_at:,.0f} s"
                raise BusyError(f"{self._path}: {self._what}: {stuck}; {_advice(owner)}")
            if now - logged_at >= _LOG_SECONDS:
                logged_at = now
                level = logging.INFO if now - changed_at < _LOG_SECONDS else logging.WARNING
                _log.log(level, "%s: waiting for %s; no progress for %.0f s", self._what, who, now - changed_at)
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS)
        return lock


def read_owner(path: Path) -> Owner | None:
    """What the owner of a lock wrote last; None when that cannot be read."""
    try:
        descriptor = open_regular(path)
        try:
            found = json.loads(os.pread(descriptor, _NOTE_BYTES, 0))
        finally:
            os.close(descriptor)
        return Owner(**{name: found[name] for name in Owner.__dataclass_fields__})
    except (OSError, ValueError, KeyError, TypeError, RecursionError, FormatError):
        return None


def _advice(owner: Owner | None) -> str:
    if owner is None or owner.host != socket.gethostname():  # in another container the number means another process
        return "continue it or end it there"
    return f"continue it (kill -CONT {owner.pid}) or end it (kill -9 {owner.pid})"


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
