"""Other processes that stage, and stop in the middle."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from builds import REPOSITORY

HALF = """
import os, signal, sys, threading
from pathlib import Path
from precompile.loading.caching import copying
from precompile.loading.caching.options import Cache
from precompile.loading.caching.staging import add

root, directory, do, half = Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
plain, once = copying.Meter.add, threading.Lock()  # one of its threads stops all

def add_half(meter, num_bytes):
    plain(meter, num_bytes)
    if meter.done_bytes * 2 >= meter.total_bytes and once.acquire(blocking=False):
        half.touch()
        if do == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if do == "interrupt":
            meter.stop.wait()
        if do == "wait":
            threading.Event().wait()

copying.Meter.add = add_half
add(root, Cache(directory=directory))
"""


class Stager:
    """A process that stages `root`. Half way it waits for ever (`wait`), stops itself with SIGSTOP (`stop`), or
    waits for an interrupt (`interrupt`)."""

    def __init__(self, root: Path, directory: Path, do: str, half: Path) -> None:
        command = [sys.executable, "-c", HALF, *map(str, (root, directory, do, half))]
        self._process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
        self.pid = self._process.pid
        until(lambda: half.exists() or self._process.poll() is not None, "it is not half way")
        assert self._process.poll() is None, "it ended"
        if do == "stop":
            until(lambda: "T (stopped)" in Path(f"/proc/{self.pid}/status").read_text(), "it does not stop")

    def kill(self) -> None:
        """kill -9"""
        self._process.kill()
        self._process.wait()

    def go_on(self) -> int:
        """After `stop`: to its end; returns the exit code."""
        os.kill(self.pid, signal.SIGCONT)
        return self._process.wait(60)

    def interrupt(self) -> int:
        """ctrl-C; returns the exit code."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(60)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.kill()


def until(condition, what: str) -> None:  # type: ignore[no-untyped-def]
    """Wait until it is so; at most a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        select.select([], [], [], 0.005)
