"""The thread that looks at how long a consumer has waited."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
import weakref
from dataclasses import dataclass

from precompile.loading.processes.activity import read_activity
from precompile.loading.watching import report
from precompile.loading.watching.limited import within
from precompile.loading.watching.observation import observe
from precompile.loading.watching.waiting import Waiting
from precompile.loading.watching.worker_processes import Workers, kill, workers_of

logger = logging.getLogger("precompile")
EXIT_CODE_STUCK = 70
"""EX_SOFTWARE of sysexits.h."""
_GRACE_SECONDS = 5.0
"""In which the main thread must come out of its wait once it is interrupted."""
_THREAD_GRACE_SECONDS = 7.0
"""Of other threads: torch's DataLoader looks up every 5 s."""
_WHERE = "it is stuck in C code, or waits for a lock outside of the main thread"
_REPEAT_SECONDS = 1.0
_PAUSE_SECONDS = 5.0
"""More than a busy machine keeps a thread waiting."""
_MAX_TICK_SECONDS = 0.5
_LOG_SECONDS = 0.5
"""Whoever is stuck may hold a lock of the logging module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """As `watch` takes them."""

    timeout_seconds: float
    warn_seconds: float
    exit_when_stuck: bool

    @property
    def tick_seconds(self) -> float:
        return max(0.02, min(_MAX_TICK_SECONDS, self.warn_seconds / 4))


class Monitor:
    """Runs until `stop`, and at the latest until the interpreter ends."""

    def __init__(self, waiting: Waiting, limits: Limits) -> None:
        self._waiting, self._limits = waiting, limits
        self._settled = self._warned = -1  # numbers of waits
        self._warn_at = 0.0
        self._woke_at = 0.0
        """When this process ran again after a pause of its own: a job suspended, a container frozen."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="precompile-watch", daemon=True)
        _running.add(self)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        _running.discard(self)

    def _run(self) -> None:
        looked_at = time.monotonic()
        while not self._stop.wait(self._limits.tick_seconds):
            now = time.monotonic()
            if now - looked_at > self._limits.tick_seconds + _PAUSE_SECONDS:
                self._woke_at = now
            present = self._waiting.present()
            if present is not None and present[0] != self._settled:
                try:
                    self._look(*present, now)
                except Exception as error:  # the loader is more important than what watches it
                    self._settled = present[0]
                    _log(logging.ERROR, f"could not look at a loader that stalls: {error!r}")
            looked_at = time.monotonic()

    def _look(self, number: int, since: float, now: float) -> None:
        if now - since < self._limits.warn_seconds:
            return
        if number != self._warned:
            self._warned, self._warn_at = number, since + self._limits.warn_seconds
        moved_at = max(since, self._woke_at, self._moved_at())
        if now - moved_at >= self._limits.timeout_seconds:
            if self._stall(number, since, moved_at):
                self._settled = number
        elif now >= self._warn_at:
            self._warn_at = since + 2 * (now - since)
            self._warn(number, since)

    def _workers(self) -> Workers:
        return workers_of(self._waiting.iterator, self._waiting.iterable)

    def _moved_at(self) -> float:
        """When a worker began a sample last, or ended one; this process itself where there are no workers."""
        workers = self._workers()
        pids = workers.pids if workers.pids and not workers.are_guessed else [os.getpid(), *workers.pids]
        activities = (read_activity(pid) for pid in pids)
        return max((seen.changed_at for seen in activities if seen is not None), default=0.0)

    def _warn(self, number: int, since: float) -> None:
        seen = observe(self._waiting, self._workers(), in_depth=False)
        if self._waiting.is_still(number):
            text = report.short(seen, time.monotonic() - since)
            _log(logging.WARNING, text)

    def _stall(self, number: int, since: float, moved_at: float) -> bool:
        """Report and interrupt; whether nothing is left to be done about this wait."""
        workers = self._workers()
        seen = observe(self._waiting, workers, in_depth=True)
        if not self._waiting.is_still(number) or self._moved_at() > moved_at:
            return False
        text = report.whole(seen, time.monotonic() - since, moved_at - since, self._limits.timeout_seconds)
        _log(logging.ERROR, text)
        began = time.monotonic()
        is_main = self._waiting.thread == threading.main_thread().ident
        grace = _GRACE_SECONDS if is_main else _THREAD_GRACE_SECONDS
        while time.monotonic() - began < grace:
            if not self._waiting.interrupt(number, text) or self._came_out(number):
                return True
        if self._waiting.is_still(number):
            self._give_up(text, workers, grace)
        return True

    def _came_out(self, number: int) -> bool:
        until = time.monotonic() + _REPEAT_SECONDS
        while time.monotonic() < until:
            if not self._waiting.is_still(number):
                return True
            if self._stop.wait(0.01):
                return True
        return False

    def _give_up(self, text: str, workers: Workers, grace: float) -> None:
        """The consumer is stuck where no exception reaches it."""
        exits = self._limits.exit_when_stuck
        what = (
            f"so this process ends with exit code {EXIT_CODE_STUCK}" if exits else "and stays, as exit_when_stuck=False"
        )
        text = f"{text}\nThe consumer did not come out in {grace:.0f} s ({_WHERE}), {what}."
        _log(logging.CRITICAL, text)
        within(1.0, lambda: _write(text), None)
        if exits:
            within(1.0, _flush, None)
            kill(workers)
            os._exit(EXIT_CODE_STUCK)


def _log(level: int, text: str) -> None:
    within(_LOG_SECONDS, lambda: logger.log(level, "%s", text), None)


def _write(text: str) -> None:
    """Past sys.stderr, whose lock may be held, and which a notebook or a test may have replaced."""
    data = (text + "\n").encode(errors="replace")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    for reference in list(logging._handlerList):  # type: ignore[attr-defined]
        handler = reference()
        if handler is not None:
            with contextlib.suppress(OSError, ValueError):
                handler.flush()


_running: weakref.WeakSet[Monitor] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for monitor in list(_running):
        monitor.stop()


def _after_fork() -> None:
    _running.clear()  # their threads stayed in the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
