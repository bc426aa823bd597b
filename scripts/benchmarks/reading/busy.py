"""A consumer that is busy in pure Python, as a training loop between two batches may be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reading.comparison import Run

_TRIAL_LOOPS = 100_000
_TRIALS = 25


def spin(loops: int) -> None:
    """Holds the GIL but for the switches that the interpreter grants."""
    done = 0
    while done < loops:
        done += 1


def busy(milliseconds: float) -> Callable[[], None]:
    """What keeps this thread busy for so long when it is alone."""
    seconds = []
    for _ in range(_TRIALS):
        began = time.perf_counter()
        spin(_TRIAL_LOOPS)
        seconds.append(time.perf_counter() - began)
    loops = round(_TRIAL_LOOPS * milliseconds / 1000 / min(seconds))
    return lambda: spin(loops)


def busy_alone(each: Callable[[], None], num_batches: int, batch_size: int) -> Run:
    """As busy as with so many batches, without them."""

    def epoch() -> int:
        for _ in range(num_batches):
            each()
        return num_batches * batch_size

    @contextmanager
    def prepared(seed: int) -> Iterator[Callable[[], int]]:
        yield epoch

    return prepared
