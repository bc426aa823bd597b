"""A peer in a process of its own, driven by lines of JSON; see peer_protocol.py for what they say."""

from __future__ import annotations

import contextlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class PeerFailed(Exception):
    """The peer's process ended; the message is the last line that it printed, `log` all that it printed."""

    def __init__(self, log: str) -> None:
        super().__init__(log.splitlines()[-1])
        self.log = log


class PeerMissing(PeerFailed):
    """The interpreter lacks a package that the peer imports."""


@dataclass(frozen=True, slots=True)
class Done:
    samples: int
    seconds: float


class PeerProcess:
    """Starts the peer, which writes its files; `wait` until it has. The methods raise PeerMissing or PeerFailed."""

    def __init__(self, name: str, command: list[str], *, log: Path) -> None:
        self.name, self.log = name, log
        self.cases: list[str] = []
        self.versions: dict[str, str] = {}
        with log.open("w") as stderr:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, bufsize=1
            )

    def wait(self) -> None:
        hello = self._answer()
        self.cases, self.versions = hello["cases"], hello["versions"]

    def epoch(self, case: str, seed: int, *, check: bool = False) -> Done:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"case": case, "seed": seed, "check": check}) + "\n")
        except BrokenPipeError:
            raise self._failure() from None
        return Done(**self._answer())

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self) -> PeerFailed:
        status = self._process.wait()
        failure = PeerFailed(self.log.read_text(errors="replace").strip() or f"ended with exit status {status}")
        return PeerMissing(failure.log) if str(failure).startswith("ModuleNotFoundError") else failure

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
