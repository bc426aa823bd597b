"""What the consumer waits for, and since when: written by the consumer, read by the monitor."""

from __future__ import annotations

import threading
import time
from typing import Any

from precompile.loading.watching import interrupt


class Waiting:
    """One iteration of a loader.

    The consumer only sets attributes; it takes the lock when the monitor has interrupted this very wait, no other time.
    """

    def __init__(self, iterable: Any) -> None:
        self.iterable = iterable
        self.iterator: Any = None
        self.since: float | None = None
        """time.monotonic() at which the present wait began; None while the consumer has what it asked for."""
        self.number = 0
        """Counts the waits, so that each has a name of its own."""
        self.step = ""
        """`start`, `batch` or `shutdown`."""
        self.num_batches = 0
        """How many have come."""
        self.thread = threading.get_ident()
        """Of the consumer."""
        self.report: str | None = None
        """Why this wait was interrupted."""
        self.is_interrupted = False
        """While it is under way to the consumer."""
        self.was_raised = False
        """In the main thread, and in the present wait."""
        self.interrupted: type[interrupt.Interrupted] = type("Interrupted", (interrupt.Interrupted,), {})
        """Raised in the consumer. A class of this iteration alone, so that nested ones tell theirs apart."""
        self.reset()

    def reset(self) -> None:
        """For a new monitor, in a forked child too."""
        self.since = None
        self.is_interrupted = False
        self._lock = threading.Lock()

    def begin(self, step: str) -> None:
        self.step = step
        self.was_raised = False
        self.thread = threading.get_ident()
        self.number += 1
        self.since = time.monotonic()

    def end(self) -> None:
        """After this, and only after this, nothing is raised in the consumer any more."""
        self.since = None
        if self.is_interrupted:
            self._settle()

    def present(self) -> tuple[int, float] | None:
        """(number, since) of the present wait."""
        number, since = self.number, self.since
        if since is None or number != self.number:
            return None
        return number, since

    def is_still(self, number: int) -> bool:
        return self.number == number and self.since is not None

    def interrupt(self, number: int, report: str) -> bool:
        """By the monitor: raise in the consumer, unless what it waits for has come. May be repeated."""
        with self._lock:
            self.is_interrupted = True
            if not self.is_still(number):
                self.is_interrupted = False
                return False
            self.report = report
            interrupt.send(self)
        return True

    def _settle(self) -> None:
        """Take back what was sent and has not arrived. It may still arrive at any point in here, once."""
        while True:
            try:
                with self._lock:
                    interrupt.take_back(self)
                    self.is_interrupted = False
                return
            except self.interrupted:
                continue

    def what(self) -> str:
        """The present step, in words."""
        if self.step == "batch":
            return f"waiting for batch {self.num_batches + 1}"
        return {"start": "waiting for the loader to start", "shutdown": "waiting for the loader to shut down"}[
            self.step
        ]
