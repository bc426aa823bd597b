"""What is raised in a consumer arrives inside of its wait, or not at all."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from precompile.loading.watching import interrupt
from precompile.loading.watching.waiting import Waiting

WAITS = 3000
NOTHING = object()


class Teaser:
    """A thread that interrupts every wait it sees, once, and often too late."""

    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        last = 0
        while not self.is_over.is_set():
            present = self.waiting.present()
            if present is not None and present[0] != last:
                last = present[0]
                self.waiting.interrupt(present[0], f"report of wait {present[0]}")

    def __enter__(self) -> Teaser:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.thread.join()


def consume(waiting: Waiting) -> tuple[int, int]:
    """As a WatchedIterator does -> (batches, interrupts). What is raised outside of a wait gets out of here."""
    batches = interrupts = 0
    # In every other wait the batch comes from C code that lets the other thread run: an interrupt comes with it.
    quick: Iterator[object] = itertools.repeat(1)
    slow: Iterator[object] = map(time.sleep, itertools.repeat(0))
    for wait in range(WAITS):
        is_slow = wait % 2 == 1
        batch: object = NOTHING
        waiting.begin("batch")
        try:
            if not is_slow:
                time.sleep(0)
            for batch in slow if is_slow else quick:  # noqa: B007
                break
            waiting.end()
        except waiting.interrupted:
            waiting.end()
            assert waiting.report == f"report of wait {waiting.number}"
            interrupts += batch is NOTHING
        batches += batch is not NOTHING
        time.sleep(0)
        assert sum(range(50)) == 1225, "the consumer's own work"
    return batches, interrupts


def in_this_thread(waiting: Waiting) -> tuple[int, int]:
    interrupt.add(waiting)
    try:
        return consume(waiting)
    finally:
        interrupt.remove(waiting)


def in_another_thread(waiting: Waiting) -> tuple[int, int]:
    results: list[tuple[int, int]] = []
    thread = threading.Thread(target=lambda: results.append(consume(waiting)))
    thread.start()
    thread.join()
    assert results, "an exception got out of the consumer"
    return results[0]


@pytest.mark.parametrize("consumer", [in_this_thread, in_another_thread])
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_nothing_is_raised_outside_of_a_wait(consumer: Callable[[Waiting], tuple[int, int]]) -> None:
    waiting = Waiting(None)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with Teaser(waiting):
            batches, interrupts = consumer(waiting)
    finally:
        sys.setswitchinterval(interval)
    assert batches + interrupts == WAITS, "a wait ends with its batch or with an interrupt"
    assert interrupts > 0
    assert not waiting.is_interrupted


def test_a_wait_that_has_ended_is_not_interrupted() -> None:
    waiting = Waiting(None)
    waiting.begin("batch")
    number = waiting.number
    waiting.end()
    assert not waiting.interrupt(number, "too late")
    waiting.begin("batch")
    assert not waiting.interrupt(number, "another wait")
    waiting.end()


@pytest.mark.parametrize("keeps", ["batches = iter(watch(range(5), 60)); next(batches)", "list(watch(range(5), 60))"])
def test_the_interpreter_ends_with_a_watch_that_goes_on(keeps: str) -> None:
    code = f"from precompile.loading.watching.watch import watch\n{keeps}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
