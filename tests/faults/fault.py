"""Ends, pauses or fails a build at one of the calls by which it changes its output.

Tests put a Fault into the environment of a build. There it is installed by `site/sitecustomize.py`, or by the server
of builds, and counts calls that make, rename, sync or remove a file below `root`, or open one for writing.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
import shutil  # before its functions of os are replaced: it looks then which of them know directory descriptors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

assert shutil

VARIABLE = "PRECOMPILE_TEST_FAULT"
_CALLS = ("replace", "rename", "mkdir", "rmdir", "unlink", "remove", "fsync")
_PAUSE_SECONDS = 120.0
"""At most, in case that whoever would open the gate is gone."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_open, _write, _close = os.open, os.write, os.close


@dataclass(frozen=True, slots=True)
class Fault:
    """What is to happen, and where."""

    home: str
    """A folder outside of the output, for what the processes write down; `fired` and `gate` are there."""
    root: str
    """The output of the build."""
    at: int = -1
    """The number of the call, counted from 0 in each process; no call by default."""
    do: str | int = "kill"
    """`kill` this process, `kill group`, `terminate` (SIGTERM), `pause` until `gate` exists, or an error number to
    raise from then on."""
    after: bool = False
    """Whether it happens after the call, and not before it."""
    role: str = "build"
    """The processes that count: `build` or `worker`, where it happens in the first one that comes there; or `all`."""

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    @property
    def fired(self) -> Path:
        """Exists when it happened, or begins."""
        return Path(self.home) / "fired"

    @property
    def gate(self) -> Path:
        """Ends a pause when it exists."""
        return Path(self.home) / "gate"

    def calls(self, role: str) -> list[str]:
        """`name path` of each call so far in processes of that role; paths are relative to the output."""
        log = Path(self.home) / f"{role}.calls"
        return log.read_text().splitlines() if log.exists() else []


def install() -> None:
    """In a process that is a build or a worker: make the fault of the environment happen, if there is one for it."""
    text = os.environ.get(VARIABLE)
    role = "worker" if any("executors.worker" in argument for argument in sys.orig_argv) else "build"
    if text and json.loads(text)["role"] in (role, "all"):
        _Injection(Fault(**json.loads(text)), role).install()


class _FailingFile(io.FileIO):
    """Opens, and then takes no byte."""

    error = 0

    def write(self, data: Any) -> int:
        raise OSError(self.error, os.strerror(self.error))


class _Injection:
    """Replaces functions of os and `open` in this process."""

    def __init__(self, fault: Fault, role: str) -> None:
        self._fault = fault
        self._log = Path(fault.home) / f"{role}.calls"
        self._number = 0
        self._lock = threading.RLock()

    def install(self) -> None:
        for name in _CALLS:
            setattr(os, name, self._counted(name, getattr(os, name)))
        os.open = self._counted_open(os.open)
        builtins.open = io.open = self._counted_file(io.open)

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *arguments: Any, **options: Any) -> Any:
            path = _path(target, options.get("dir_fd"))
            if not self._concerns(path) or not _has_effect(name, path):
                return real(target, *arguments, **options)
            with self._count(name, path):
                return real(target, *arguments, **options)

        return call

    def _counted_open(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(target: Any, flags: int, *arguments: Any, **options: Any) -> int:
            path = _path(target, options.get("dir_fd"))
            if not flags & _WRITES or not self._concerns(path):
                return real(target, flags, *arguments, **options)
            with self._count("open", path):
                return real(target, flags, *arguments, **options)

        return call

    def _counted_file(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if isinstance(target, int) or not set(mode) & set("wxa+") or not self._concerns(_path(target)):
                return real(target, mode, *arguments, **options)
            with self._count("open", _path(target)):
                if isinstance(self._fault.do, int) and self._number > self._fault.at >= 0:
                    raw = _FailingFile(target, mode.replace("b", ""))
                    raw.error = self._fault.do
                    return io.BufferedWriter(raw)
                return real(target, mode, *arguments, **options)

        return call

    def _concerns(self, path: str) -> bool:
        return path == self._fault.root or path.startswith(self._fault.root + os.sep)

    @contextlib.contextmanager
    def _count(self, name: str, path: str) -> Iterator[None]:
        with self._lock:
            is_it = self._number == self._fault.at
            self._number += 1
            _append(self._log, f"{name} {os.path.relpath(path, self._fault.root)}\n")
            if is_it and not self._fault.after:
                self._fire()
            error = self._fault.do
            if isinstance(error, int) and self._number > self._fault.at >= 0 and name != "open":
                raise OSError(error, os.strerror(error), path)
            yield
            if is_it and self._fault.after:
                self._fire()

    def _fire(self) -> None:
        try:
            _close(_open(self._fault.fired, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self._fault.do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._fault.do == "kill group":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        elif self._fault.do == "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        elif self._fault.do == "pause":
            deadline = time.monotonic() + _PAUSE_SECONDS
            while not self._fault.gate.exists() and time.monotonic() < deadline:
                time.sleep(0.005)


def _path(target: Any, dir_fd: int | None = None) -> str:
    if isinstance(target, int):
        return os.readlink(f"/proc/self/fd/{target}")
    below = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
    return os.path.abspath(os.path.join(below, os.fsdecode(target)))


def _has_effect(name: str, path: str) -> bool:
    """A directory that is there is not made, and what is missing is not removed."""
    return name in ("replace", "rename", "fsync") or (name == "mkdir") != os.path.lexists(path)


def _append(path: Path, text: str) -> None:
    descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    _write(descriptor, text.encode())
    _close(descriptor)
