"""How long a loader waits for its own workers and threads. It waits in short steps and looks in between, so it needs no
thread that watches, and nothing has to be interrupted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from precompile.errors import LoaderStalled
from precompile.loading.processes.activity import read_activity
from precompile.loading.watching import report
from precompile.loading.watching.observation import observe
from precompile.loading.watching.waiting import Waiting
from precompile.loading.watching.worker_processes import Workers

logger = logging.getLogger("precompile")
_WARN_SECONDS = 30.0
_LOOK_SECONDS = 1.0


class Patience:
    """Of one loader.

    timeout_seconds: None: for ever, but not in silence.
    num_batches: how many have come, for the report.
    """

    def __init__(self, timeout_seconds: float | None = None) -> None:
        self.timeout_seconds = timeout_seconds
        self.num_batches = 0
        shortest = min(timeout_seconds or _WARN_SECONDS, _WARN_SECONDS)
        self.warn_seconds = min(_WARN_SECONDS, (timeout_seconds or 2 * _WARN_SECONDS) / 2)
        self.look_seconds = min(_LOOK_SECONDS, shortest / 4)

    def begin(self, workers: Callable[[], Workers] = Workers) -> Wait:
        """The consumer has waited for `look_seconds`, for one of these, or for a thread of this process."""
        return Wait(self, workers)


class Wait:
    """One wait. Whoever waits calls `look` about every `look_seconds`."""

    def __init__(self, patience: Patience, workers: Callable[[], Workers]) -> None:
        self._patience, self._workers = patience, workers
        self._since = time.monotonic() - patience.look_seconds
        self._warn_at = self._since + patience.warn_seconds
        self._waiting = Waiting(None)
        self._waiting.num_batches = patience.num_batches
        self._waiting.begin("batch")

    def look(self) -> None:
        """Log when it has taken long. Raises LoaderStalled when it has taken too long and nobody moves."""
        now = time.monotonic()
        if now - self._since < self._patience.warn_seconds:
            return
        workers = self._workers()
        timeout_seconds = self._patience.timeout_seconds
        moved_at = max(self._since, *(seen.changed_at for pid in workers.pids if (seen := read_activity(pid))), 0.0)
        if timeout_seconds is not None and now - moved_at >= timeout_seconds:
            stall = observe(self._waiting, workers, in_depth=True)
            waited = time.monotonic() - self._since
            raise LoaderStalled(report.whole(stall, waited, moved_at - self._since, timeout_seconds))
        if now >= self._warn_at:
            self._warn_at = self._since + 2 * (now - self._since)
            logger.warning("%s", report.short(observe(self._waiting, workers, in_depth=False), now - self._since))
