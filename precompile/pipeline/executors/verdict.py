"""A worker ended on a sample: is the sample tried again, tried alone, or left out?"""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass

from precompile.pipeline.compile_shard import Failure
from precompile.pipeline.executors.heartbeat import NO_SAMPLE, Pulse

_MAX_ATTEMPTS = 2
"""A sample on which a worker died is tried once more, in case the worker died for another reason."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of the task whose worker ended. The default: it is done again."""

    sample: int = NO_SAMPLE
    failure: Failure | None = None
    """Why the sample is left out from now on."""
    alone: bool = False
    """Whether the task is set aside, to be done when no other runs."""


class Judge:
    """Remembers on which samples workers ended."""

    def __init__(self) -> None:
        self._ended: Counter[int] = Counter()

    def died(self, pulse: Pulse, how: str, last_words: str, *, alone: bool) -> Verdict:
        """A worker ended by itself, or something else ended it."""
        attempts = self._count(pulse)
        if how == signal.SIGKILL.name:
            return self._killed(pulse, attempts, alone=alone)
        if attempts < _MAX_ATTEMPTS:
            return Verdict(pulse.sample)
        words = f": {last_words}" if last_words else ""
        return _left_out(pulse, "WorkerDied", f"the decoder ended its process ({how}){words}", attempts)

    def _killed(self, pulse: Pulse, attempts: int, *, alone: bool) -> Verdict:
        """Decoders do not use SIGKILL. The kernel does when memory runs out, and may well hit an innocent process."""
        if not alone:
            return Verdict(pulse.sample, alone=True)
        how = "killed while it ran alone" if attempts == 1 else "killed twice, the second time alone"
        message = f"its process was {how} (SIGKILL); most likely it needs more memory than there is"
        return _left_out(pulse, "WorkerDied", message, attempts)

    def too_large(self, pulse: Pulse, limit_bytes: int, *, alone: bool) -> Verdict:
        """A worker was ended for using more than `limit_bytes`."""
        attempts = self._count(pulse)
        if not alone:
            return Verdict(pulse.sample, alone=True)
        message = f"needs more than {limit_bytes // 10**6} MB of memory (all that the workers may use)"
        return _left_out(pulse, "MemoryError", message, attempts)

    def too_slow(self, pulse: Pulse, timeout_seconds: float) -> Verdict:
        """A worker was ended for taking more than `timeout_seconds`."""
        message = f"not finished after {timeout_seconds:g} s (--timeout)"
        return _left_out(pulse, "TimeoutError", message, self._count(pulse))

    def _count(self, pulse: Pulse) -> int:
        self._ended[pulse.sample] += 1
        return self._ended[pulse.sample]


def _left_out(pulse: Pulse, error: str, message: str, attempts: int) -> Verdict:
    return Verdict(pulse.sample, Failure(error, message, attempts, pulse.xxh3))
