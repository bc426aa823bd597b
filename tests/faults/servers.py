"""Builds in processes that tests can end at any moment, and proof that nothing of them is left."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from builds import REPOSITORY, Outcome

HERE = Path(__file__).resolve().parent
SITE = HERE / "site"
_MARK = "PRECOMPILE_TEST_MARK"
DEADLINE_SECONDS = 60.0


class BuildServer:
    """Starts builds at once; see build_server.py. All processes that come of it carry its mark. A context manager."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._numbers = itertools.count()
        self._mark = uuid.uuid4().hex
        path = os.pathsep.join(map(str, (REPOSITORY, HERE, REPOSITORY / "tests")))
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "build_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            env={**os.environ, "PYTHONPATH": path, _MARK: self._mark},
        )  # fmt: skip

    def __enter__(self) -> BuildServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()
        self.end_all()

    def start(self, *arguments: object, environment: Mapping[str, str] | None = None) -> Build:
        """Start `precompile …` as the leader of a process group."""
        out, err = (self._home / f"{next(self._numbers)}.txt" for _ in range(2))
        request = {
            "arguments": list(map(str, arguments)), "environment": dict(environment or {}), "path": [str(SITE)],
            "out": str(out), "err": str(err),
        }  # fmt: skip
        pid = self._ask(request)
        assert pid > 1, f"expected a process id, got {pid}"
        return Build(self, pid, out, err)

    def run(self, *arguments: object, environment: Mapping[str, str] | None = None) -> Outcome:
        return self.start(*arguments, environment=environment).finish()

    def exit_code(self, pid: int, seconds: float) -> int:
        return self._ask(pid, seconds)

    def others(self) -> list[int]:
        """Processes that carry the mark, besides the server."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # it ended, or is another user's
                if self._mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return sorted(set(found) - {self._process.pid})

    def wait_for_silence(self) -> None:
        """Until no process of a build is alive; workers end with their parent."""
        until(lambda: not self.others(), "processes outlive their build")

    def end_all(self) -> None:
        for pid in self.others():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _ask(self, request: object, seconds: float = DEADLINE_SECONDS) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            self.end_all()
            self._process.stdout.readline()
            raise AssertionError(f"a build does not end: {request}")
        return int(self._process.stdout.readline())


class Build:
    """A running build. Its process id stays its own until `finish`."""

    def __init__(self, server: BuildServer, pid: int, out: Path, err: Path) -> None:
        self._server, self.pid, self._out, self._err = server, pid, out, err

    def workers(self) -> list[int]:
        return [pid for pid in self._server.others() if pid != self.pid]

    def is_running(self) -> bool:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            return state not in "ZX"
        return False

    def finish(self, seconds: float = DEADLINE_SECONDS) -> Outcome:
        """Wait for its end. Raises AssertionError when it does not come in that time; then all builds are killed."""
        code = self._server.exit_code(self.pid, seconds)
        return Outcome(code, self._out.read_text(), self._err.read_text())


def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Poll with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.005)
