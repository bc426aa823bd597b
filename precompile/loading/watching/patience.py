"""How long a loader waits for its own workers and threads. It waits in short steps and looks in between, so it needs no
thread that watches, and nothing has to be interrupted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precompile.loading.watching.wait import Wait
    from precompile.loading.watching.worker_processes import Workers

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

    def begin(self, workers: Callable[[], Workers] | None = None) -> Wait:
        """The consumer has waited for `look_seconds`, for one of these, or for a thread of this process."""
        from precompile.loading.watching.wait import Wait  # 25 ms that only who waits needs

        return Wait(self, workers)
