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

from precompile.pipeline.compile_shard import Job, Task
from precompile.pipeline.executors.heartbeat import HeartbeatFile, Pulse
from precompile.pipeline.executors.worker import THREAD_ENVIRONMENT, Start

_GOODBYE_SECONDS = 5.0
_MAIN = "from precompile.pipeline.executors.worker import main; main({descriptor}, {parent})"


class WorkerProcess:
    """A child process with a socket to it, a heartbeat file and a file with its error output.

    Not picklable. `stop` ends it and may be called twice; it also ends when this process does.
    """

    def __init__(self, directory: Path, number: int, job: Job) -> None:
        self.task: Task | None = None
        self.finishing: dict[int, Task] = {}
        self.done_before = 0
        self.heard_at = time.monotonic()
        self.log = directory / f"{number:04d}.log"
        heartbeat = directory / f"{number:04d}.heartbeat"
        self._heartbeat = HeartbeatFile(heartbeat, create=True)
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        with self.log.open("wb") as log, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN.format(descriptor=descriptor, parent=os.getpid())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                pass_fds=(descriptor,), env=_environment(),
            )  # fmt: skip
        self.connection = Connection(ours.detach())
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(Start(job, heartbeat))

    @property
    def is_busy(self) -> bool:
        return self.task is not None or bool(self.finishing)

    def unfinished_tasks(self) -> list[Task]:
        """What is lost when the process ends now."""
        return [*self.finishing.values(), *([] if self.task is None else [self.task])]

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Any) -> None:
        self.heard_at = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its death is seen when we wait for it
            self.connection.send(message)

    def receive(self) -> Any:
        """Its next message. Raises EOFError or ConnectionResetError when it has died."""
        message = self.connection.recv()
        self.heard_at = time.monotonic()
        return message

    def silent_seconds(self) -> float:
        """Since its last message, or since it began its last sample."""
        return min(time.monotonic() - self.heard_at, self.pulse().seconds)

    def pulse(self) -> Pulse:
        return self._heartbeat.read()

    def finish(self) -> None:
        """Let an idle process end by itself, and reap it."""
        self.connection.close()
        try:
            self._process.wait(_GOODBYE_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()

    def kill(self) -> None:
        """End the process at once; it is still to be reaped."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def stop(self) -> None:
        """End the process at once and reap it."""
        self.kill()
        self._process.wait()
        self.connection.close()

    def how_it_died(self) -> str:
        """Reap a process whose socket closed, and say what ended it, such as `SIGSEGV` or `exit status 1`."""
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self.connection.close()
        if code >= 0:
            return f"exit status {code}"
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"

    def last_words(self) -> str:
        """The last line of its error output."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


def _environment() -> dict[str, str]:
    """This process's environment and import path, with one thread per library."""
    path = os.pathsep.join(entry for entry in sys.path if entry) or "."
    return {**os.environ, **THREAD_ENVIRONMENT, "PYTHONPATH": path}
