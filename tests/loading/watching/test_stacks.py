"""The stacks of processes that are stuck in one way or another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from precompile.loading.processes import stacks
from precompile.loading.processes.stacks import stacks_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and real-time signals")

LIMIT_SECONDS = 20.0
"""Never reached where the stacks can be had."""

SCRIPT = """
import os, sys, threading
from precompile.loading.processes import stacks
{begin}
def the_culprit():
    print("ready", flush=True)
    {stuck}
the_culprit()
"""


@contextmanager
def stuck(how: str, *, begin: str = "stacks.begin()") -> Iterator[int]:
    """The pid of a process that is stuck in `the_culprit`."""
    code = SCRIPT.format(stuck=how, begin=begin)
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process.pid
            assert process.poll() is None, "asking for its stacks ended it"
        finally:
            process.kill()


@pytest.mark.parametrize(
    "how",
    [
        "sys.stdin.read()",
        "lock = threading.Lock(); lock.acquire(); lock.acquire()",
        "threading.Thread(target=threading.Event().wait).start(); threading.Event().wait()",
        "import ctypes; ctypes.PyDLL(None).sleep(1000)",
        "list(iter(int, 1))",
    ],
    ids=["read", "lock", "threads", "in C, with the GIL", "running"],
)
def test_stacks_of_a_stuck_process(how: str) -> None:
    with stuck(how) as pid:
        text = stacks_of(pid, LIMIT_SECONDS)
    assert text is not None
    assert "in the_culprit" in text


def test_asking_again_gives_the_stacks_once() -> None:
    with stuck("sys.stdin.read()") as pid:
        texts = [stacks_of(pid, LIMIT_SECONDS) for _ in range(3)]
    assert [text and text.count("in the_culprit") for text in texts] == [1, 1, 1]


def test_a_main_thread_that_blocks_the_signal_is_seen_by_another_thread() -> None:
    begin = """stacks.begin()
import signal
started = threading.Event()
threading.Thread(target=lambda: (started.set(), threading.Event().wait()), daemon=True).start()
started.wait()
signal.pthread_sigmask(signal.SIG_BLOCK, [stacks.SIGNAL])"""
    with stuck("sys.stdin.read()", begin=begin) as pid:
        text = stacks_of(pid, LIMIT_SECONDS)
    assert text is not None
    assert "in the_culprit" in text


@pytest.mark.parametrize("begin", ["", "import signal; signal.signal(stacks.SIGNAL, lambda *_: None)"])
def test_a_process_that_never_began_is_left_alone(begin: str) -> None:
    with stuck("sys.stdin.read()", begin=begin) as pid:
        assert stacks_of(pid, LIMIT_SECONDS) is None


def test_a_stopped_process_has_none() -> None:
    with stuck("sys.stdin.read()") as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        assert stacks_of(pid, LIMIT_SECONDS) is None


def test_a_process_that_is_gone_has_none() -> None:
    with stuck("sys.stdin.read()") as pid:
        pass
    assert stacks_of(pid, LIMIT_SECONDS) is None


def test_a_forked_child_answers_for_itself() -> None:
    stacks.begin()
    ready, to_parent = os.pipe()
    never, from_parent = os.pipe()

    def in_the_child() -> None:
        os.write(to_parent, b".")
        os.read(never, 1)

    pid = os.fork()
    if not pid:
        in_the_child()
        os._exit(1)
    os.read(ready, 1)
    of_child, of_parent = stacks_of(pid, LIMIT_SECONDS), stacks_of(os.getpid(), LIMIT_SECONDS)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for fd in (ready, to_parent, never, from_parent):
        os.close(fd)
    assert of_child is not None
    assert "in in_the_child" in of_child
    assert of_parent is not None
    assert "in in_the_child" not in of_parent
