"""A limited thread leaves torch's threads everywhere else as they were."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from precompile import CompiledDataset, Loader
from precompile.loading import background
from precompile.loading.background import CopyThreads

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def run_script() -> Callable[..., str]:
    """Run Python code in a process of its own, since torch's thread count belongs to the process."""

    def run(code: str, *arguments: str) -> str:
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_only_the_limited_thread_is_limited(run_script: Callable[..., str], threads: int) -> None:
    code = """
        import sys, threading, torch
        from precompile.loading.background import CopyThreads
        torch.set_num_threads(int(sys.argv[1]))
        threads, seen = CopyThreads(), []
        threads.submit(lambda: seen.append(torch.get_num_threads())).wait()
        later = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start(); thread.join()
        threads.submit(lambda: seen.append(torch.get_num_threads())).wait()
        print(seen[0], torch.get_num_threads(), *later, seen[1])
    """
    assert run_script(code, str(threads)).split() == ["1", str(threads), str(threads), "1"]


def test_the_default_is_left_alone(run_script: Callable[..., str]) -> None:
    code = """
        import threading, torch
        from precompile.loading.background import CopyThreads
        def in_new_thread():
            seen = []
            thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            thread.start(); thread.join()
            return seen[0]
        before = in_new_thread()
        limited = []
        def seen_by(both):
            limited.append(torch.get_num_threads())
            both.wait()  # so each thread does one
        for _ in range(3):
            threads, both = CopyThreads(2), threading.Barrier(2)
            for ticket in [threads.submit(lambda: seen_by(both)) for _ in range(2)]:
                ticket.wait()
        print(limited == [1] * 6, before == in_new_thread() == torch.get_num_threads())
    """
    assert run_script(code).split() == ["True", "True"]


def test_a_loader_leaves_torch_alone(run_script: Callable[..., str], images: tuple[Path, object]) -> None:
    code = """
        import sys, threading, torch
        from precompile import CompiledDataset, Loader
        torch.set_num_threads(3)
        seen = [torch.get_num_threads()]
        for _ in Loader(CompiledDataset(sys.argv[1]), 4):
            seen.append(torch.get_num_threads())
            thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            thread.start(); thread.join()
        print(len(seen), set(seen))
    """
    assert run_script(code, str(images[0])).split() == ["27", "{3}"]


def test_work_is_done_in_order_and_its_errors_are_raised() -> None:
    threads, done = CopyThreads(), []
    tickets = [threads.submit(lambda number=number: done.append(10 // number)) for number in (5, 0, 2)]
    tickets[0].wait()
    with pytest.raises(ZeroDivisionError):
        tickets[1].wait()
    tickets[2].wait()
    assert done == [2, 5]
    threads.stop()
    threads.stop()


def test_stopping_drops_what_has_not_begun() -> None:
    threads, begun, go_on, done = CopyThreads(), threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        go_on.wait(60)
        done.append("slow")

    threads.submit(slow)
    threads.submit(lambda: done.append("never"))
    assert begun.wait(60)
    stopper = threading.Thread(target=threads.stop)
    stopper.start()
    while threads.are_here:
        os.sched_yield()
    go_on.set()
    stopper.join()
    assert done in (["slow"], ["slow", "never"])
    assert not threads.are_here


def test_a_thread_may_stop_its_own_threads() -> None:
    threads = CopyThreads()
    threads.submit(threads.stop).wait()
    assert not threads.are_here
    done: list[int] = []
    threads.submit(lambda: done.append(1)).wait()
    assert done == [1]
    threads.stop()


class Interrupted(BaseException):
    """Stands for a KeyboardInterrupt that comes between any two lines."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("count", [1, 3])
def test_an_interrupt_at_any_line_leaves_threads_usable(count: int) -> None:
    """Every line of starting, submitting and stopping in turn raises; afterwards work is done as ever."""
    source = background.__file__

    def interrupted_at(line: int) -> bool:
        left = line

        def trace(frame: Any, event: str, argument: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename != source:
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    raise Interrupted
            return trace

        threads = CopyThreads(count)
        sys.settrace(trace)
        try:
            threads.submit(lambda: None).wait()
            threads.stop()
        except Interrupted:
            pass
        finally:
            sys.settrace(None)
        done: list[int] = []
        tickets = [threads.submit(lambda number=number: done.append(number)) for number in range(5)]
        for ticket in tickets:
            assert ticket._done.acquire(timeout=60), f"hangs after an interrupt at line {line}"
        threads.stop()
        assert sorted(done) == list(range(5))
        return left <= 0

    lines = 1
    while interrupted_at(lines):
        lines += 1
    assert lines > 20


def test_a_loader_goes_on_after_interrupts(images: tuple[Path, object]) -> None:
    loader = Loader(CompiledDataset(images[0], fields="image"), 4, threads=2)
    expected = torch.cat(list(loader))
    rng = np.random.default_rng(0)

    is_armed = False

    def interrupt(signum: int, frame: Any) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(150):
            signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-5, 4e-3)))
            # Python's own threading may make "release unlocked lock" of an interrupt while a thread starts.
            with contextlib.suppress(Interrupted, RuntimeError):
                try:
                    is_armed = True
                    list(loader)
                finally:
                    is_armed = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert torch.equal(torch.cat(list(loader)), expected)


def test_a_loader_in_a_late_exit_handler_is_told_so(
    run_script: Callable[..., str], images: tuple[Path, object]
) -> None:
    code = """
        import atexit, sys
        def late():
            for stream in (half_read, iter(loader)):
                try:
                    list(stream)
                except RuntimeError as error:
                    print(error)
        atexit.register(late)
        from precompile import CompiledDataset, Loader
        loader = Loader(CompiledDataset(sys.argv[1], fields="image"), 1, threads=2)
        half_read = iter(loader)
        next(half_read)
    """
    # the Loader's own handler was registered later, so it runs before
    said = run_script(code, str(images[0])).splitlines()
    assert said == ["the interpreter ends, so a Loader gives no more batches"] * 2
