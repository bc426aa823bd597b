"""What a worker is doing, in a small mapped file: cheap to write before each sample, readable after a crash."""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precompile.errors import FormatError
from precompile.format.files import read_whole

NO_SAMPLE = -1
SUFFIX = ".heartbeat"
_NUM_BYTES = 32
_SAMPLE, _BEGAN_NS, _DONE, _XXH3 = range(4)


@dataclass(frozen=True, slots=True)
class Pulse:
    """One look at a worker."""

    sample: int
    """The input it is on, by its number in the plan; NO_SAMPLE between samples."""
    seconds: float
    """How long it has been on that sample."""
    done: int
    """Inputs it has finished so far, in all tasks."""
    xxh3: str
    """XXH3-64 of the bytes of that sample's file, 16 hex digits; empty while they are not read."""


class HeartbeatFile:
    """Written by one worker, read by its parent. Uses the system-wide monotonic clock of one machine."""

    def __init__(self, path: Path, *, create: bool) -> None:
        if create:
            path.write_bytes(np.array([NO_SAMPLE, 0, 0, 0], "<i8").tobytes())
        with path.open("r+b") as file:
            self._values = np.frombuffer(mmap.mmap(file.fileno(), _NUM_BYTES), "<i8")

    def begin(self, sample: int) -> None:
        self._values[_BEGAN_NS] = time.monotonic_ns()
        self._values[_XXH3] = 0
        self._values[_SAMPLE] = sample

    def loaded(self, xxh3: int) -> None:
        self._values.view("<u8")[_XXH3] = xxh3

    def end(self) -> None:
        self._values[_SAMPLE] = NO_SAMPLE
        self._values[_DONE] += 1

    def read(self) -> Pulse:
        began_ns = int(self._values[_BEGAN_NS])
        return _pulse(self._values, (time.monotonic_ns() - began_ns) / 1e9)


def read_left(directory: Path) -> list[Pulse]:
    """What the workers of a run that was killed outright were on; their `seconds` are 0, as that clock is gone.

    Workers between samples are left out, and so are damaged files. The numbers of the samples are not checked.
    """
    pulses = []
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        try:
            data = read_whole(path, _NUM_BYTES)
        except (OSError, FormatError):
            continue
        values = np.frombuffer(data[: len(data) // 8 * 8], "<i8")
        if len(data) == _NUM_BYTES and values[_SAMPLE] > NO_SAMPLE and values[_DONE] >= 0:
            pulses.append(_pulse(values, 0.0))
    return pulses


def remove_left(directory: Path) -> None:
    """Remove all heartbeats, for there is nothing to tell the next run."""
    for path in directory.glob(f"*{SUFFIX}"):
        path.unlink(missing_ok=True)


def _pulse(values: np.ndarray, seconds: float) -> Pulse:
    xxh3 = int(values.view("<u8")[_XXH3])
    return Pulse(int(values[_SAMPLE]), seconds, int(values[_DONE]), f"{xxh3:016x}" if xxh3 else "")
