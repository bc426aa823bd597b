"""What workers may use: time for a sample, memory, and time for the whole run."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from precompile import machine
from precompile.errors import StoppedError

MIN_WORKER_BYTES = 1 << 30
"""A worker is never held to less, since torch alone takes a good part of it."""
_SHARE_OF_AVAILABLE = 0.9


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one run of an executor."""

    timeout_seconds: float
    """A sample may take this long."""
    memory_bytes: int | None = None
    """What all workers together may use, mapped files aside; None: nine tenths of what is available at the start."""
    deadline: float | None = None
    """The time.monotonic() at which the run is stopped."""

    def __post_init__(self) -> None:
        if not self.timeout_seconds > 0:
            raise ValueError(f"timeout_seconds must be more than 0, got timeout_seconds={self.timeout_seconds}")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise ValueError(f"memory_bytes must be at least 1, got memory_bytes={self.memory_bytes}")

    def measured(self) -> Limits:
        """These limits with `memory_bytes` known."""
        if self.memory_bytes is not None:
            return self
        return replace(self, memory_bytes=max(1, int(_SHARE_OF_AVAILABLE * machine.memory().available_bytes)))

    def worker_bytes(self, workers: int) -> int:
        """What each of `workers` processes may use. Only for measured limits."""
        assert self.memory_bytes is not None
        return max(self.memory_bytes // workers, MIN_WORKER_BYTES)

    def check_deadline(self) -> None:
        """Raises StoppedError when the deadline has passed."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise StoppedError("stopped by max_runtime; finished shards are kept, run the same command again to go on")
