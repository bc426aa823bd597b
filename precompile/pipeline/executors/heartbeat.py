"""What a worker is doing, in a small mapped file: cheap to write before each sample, readable after a crash."""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

NO_SAMPLE = -1
_SAMPLE, _BEGAN_NS, _DONE = range(3)


@dataclass(frozen=True, slots=True)
class Pulse:
    """One look at a worker."""

    sample: int
    """The input it is on, by its number in the plan; NO_SAMPLE between samples."""
    seconds: float
    """How long it has been on that sample."""
    done: int
    """Inputs it has finished so far, in all tasks."""


class HeartbeatFile:
    """Written by one worker, read by its parent. Uses the system-wide monotonic clock of one machine."""

    def __init__(self, path: Path, *, create: bool) -> None:
        if create:
            path.write_bytes(np.array([NO_SAMPLE, 0, 0], "<i8").tobytes())
        with path.open("r+b") as file:
            self._values = np.frombuffer(mmap.mmap(file.fileno(), 24), "<i8")

    def begin(self, sample: int) -> None:
        self._values[_BEGAN_NS] = time.monotonic_ns()
        self._values[_SAMPLE] = sample

    def end(self) -> None:
        self._values[_SAMPLE] = NO_SAMPLE
        self._values[_DONE] += 1

    def read(self) -> Pulse:
        sample, began_ns, done = self._values.tolist()
        return Pulse(sample, (time.monotonic_ns() - began_ns) / 1e9, done)
