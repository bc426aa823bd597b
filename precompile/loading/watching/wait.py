"""One wait of a loader for its own workers or threads, looked at from time to time."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from precompile.errors import LoaderStalled
from precompile.loading.background import THREAD_NAME
from precompile.loading.processes.activity import read_activity
from precompile.loading.watching import report
from precompile.loading.watching.limited import within
from precompile.loading.watching.observation import observe
from precompile.loading.watching.waiting import Waiting
from precompile.loading.watching.worker_processes import Workers

if TYPE_CHECKING:
    from precompile.loading.watching.patience import Patience

logger = logging.getLogger("precompile")
_PAUSE_SECONDS = 5.0
_LOG_SECONDS = 0.5
"""Whoever is stuck may hold a lock of the logging module."""


class Wait:
    """One wait. Whoever waits calls `look` about every `look_seconds`."""

    def __init__(self, patience: Patience, workers: Callable[[], Workers] | None) -> None:
        self._patience, self._workers = patience, workers or Workers
        self._since = time.monotonic() - patience.look_seconds
        self._looked_at = time.monotonic()
        self._warn_at = self._since + patience.warn_seconds
        self._waiting = Waiting(None)
        self._waiting.num_batches = patience.num_batches
        self._waiting.begin("batch")

    def look(self) -> None:
        """Log when it has taken long. Raises LoaderStalled when it has taken too long and nobody moves."""
        now = time.monotonic()
        if now - self._looked_at > self._patience.look_seconds + _PAUSE_SECONDS:
            self._since = now  # this process was stopped meanwhile, or its container paused
        self._looked_at = now
        if now - self._since < self._patience.warn_seconds:
            return
        workers = self._workers()
        timeout_seconds = self._patience.timeout_seconds
        pids = workers.pids or [os.getpid()]
        moved_at = max(self._since, *(seen.changed_at for pid in pids if (seen := read_activity(pid))), 0.0)
        if timeout_seconds is not None and now - moved_at >= timeout_seconds:
            if not workers.pids:
                self._waiting.thread = _busy_copy_thread() or self._waiting.thread
            stall = observe(self._waiting, workers, in_depth=True)
            waited = time.monotonic() - self._since
            raise LoaderStalled(report.whole(stall, waited, moved_at - self._since, timeout_seconds))
        if now >= self._warn_at:
            self._warn_at = self._since + 2 * (now - self._since)
            text = report.short(observe(self._waiting, workers, in_depth=False), now - self._since)
            within(_LOG_SECONDS, lambda: logger.warning("%s", text), None)
            self._looked_at = time.monotonic()


def _busy_copy_thread() -> int | None:
    """Of a loader's own threads one that works: it, and not who looks here, is what the consumer waits for."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or -1)
        if thread.name.startswith(THREAD_NAME) and frame is not None and frame.f_code.co_name != "_work":
            return thread.ident
    return None
