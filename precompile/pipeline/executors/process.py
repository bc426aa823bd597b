"""One worker process, seen from its parent."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from precompile.pipeline.compile_shard import Job, Task
from precompile.pipeline.executors.heartbeat import SUFFIX, HeartbeatFile, Pulse
from precompile.pipeline.executors.worker import THREAD_ENVIRONMENT, Start

_REAP_SECONDS = 5.0
"""A process that was killed ends later only if it hangs in the kernel, and then it ends when that lets go of it."""
_MAIN = "from precompile.pipeline.executors.worker import main; main({descriptor}, {parent})"


class WorkerProcess:
    """A child process with a socket to it, a heartbeat file and a file with its error output.

    Not picklable. `stop` ends it and may be called twice; it also ends when this process does.
    """

    def __init__(self, directory: Path, number: int, job: Job) -> None:
        self.task: Task | None = None
        self.finishing: dict[int, Task] = {}
        self._done_before = 0
        self._heard_at = time.monotonic()
        self._log = directory / f"{number:04d}.log"
        self._heartbeat_path = directory / f"{number:04d}{SUFFIX}"
        self._heartbeat = HeartbeatFile(self._heartbeat_path, create=True)
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        try:
            with theirs:
                self._process = _spawn(theirs.fileno(), self._log)
            self._memory = psutil.Process(self._process.pid)
            self.send(Start(job, self._heartbeat_path))
        except BaseException:
            self.connection.close()  # which ends the process, if there is one already
            raise

    @property
    def is_busy(self) -> bool:
        return self.task is not None or bool(self.finishing)

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, task: Task) -> None:
        self.task = task
        self._done_before = self.pulse().done
        self.send(task)

    def send(self, message: Any) -> None:
        self._heard_at = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its death is seen when we wait for it
            self.connection.send(message)

    def receive(self) -> Any:
        """Its next message. Raises EOFError or ConnectionResetError when it has died."""
        message = self.connection.recv()
        self._heard_at = time.monotonic()
        return message

    def silent_seconds(self) -> float:
        """Since its last message, or since it began its last sample."""
        return min(time.monotonic() - self._heard_at, self.pulse().seconds)

    def pulse(self) -> Pulse:
        return self._heartbeat.read()

    def private_bytes(self) -> int:
        """Its resident memory without what is mapped from files, such as shards; 0 when it has ended."""
        try:
            memory = self._memory.memory_info()
        except psutil.Error:
            return 0
        return int(memory.rss - getattr(memory, "shared", 0))

    def inputs_done(self) -> int:
        """Inputs of its tasks that have no receipt yet."""
        compiled = sum(task.stop - task.start for task in self.finishing.values())
        return compiled + (0 if self.task is None else self.pulse().done - self._done_before)

    def dismiss(self) -> None:
        """Let an idle process end by itself."""
        self.connection.close()

    def kill(self) -> None:
        """End the process at once; it is still to be reaped."""
        self._process.kill()

    def wait(self, seconds: float) -> None:
        """Reap the process, if it ends within `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def stop(self) -> None:
        """End the process at once, and take its heartbeat away: a file that is left tells of a run that was killed."""
        self.kill()
        self.connection.close()
        self._heartbeat_path.unlink(missing_ok=True)
        self.wait(_REAP_SECONDS)

    def how_it_died(self) -> str:
        """Reap a process whose socket closed, and say what ended it, such as `SIGSEGV` or `exit status 1`."""
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "closed its socket"
        if code >= 0:
            return f"exit status {code}"
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"

    def last_words(self) -> str:
        """The last line of its error output."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


def _spawn(descriptor: int, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _MAIN.format(descriptor=descriptor, parent=os.getpid())],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file,
            pass_fds=(descriptor,), env=_environment(),
        )  # fmt: skip


def _environment() -> dict[str, str]:
    """This process's environment and import path, with one thread per library."""
    path = os.pathsep.join(entry for entry in sys.path if entry) or "."
    return {**os.environ, **THREAD_ENVIRONMENT, "PYTHONPATH": path}
