"""Code for the workers of a build, as `sitecustomize`: decoders that misbehave on files with a marker.

A marker is the last four bytes of a file, behind a whole picture or alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

MISBEHAVING_DECODER = """
import os, signal, time, PIL.Image

def hang():
    while True:
        pass

def deep():
    deep()

def throw(error):
    raise error

class Odd(BaseException):
    pass

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def is_first():
    try:
        os.close(os.open(os.environ["MARKER"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

def take(num_bytes):
    return [b"x" * (8 << 20) for _ in range(num_bytes >> 23)]

def grow():
    held = take(1 << 30)  # not more, lest a test that fails takes the machine with it
    hang()

def need_200_mb():
    first = is_first()
    held = take(200 << 20)
    if first:
        hang()
    time.sleep(0.5)  # long enough to be looked at

ACTIONS = {
    b"SEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    b"ABRT": os.abort,
    b"EXIT": lambda: os._exit(3),
    b"HANG": hang,
    b"DEEP": deep,
    b"MEMO": lambda: throw(MemoryError()),
    b"CTRL": lambda: throw(KeyboardInterrupt()),
    b"QUIT": lambda: throw(SystemExit(0)),
    b"ODD ": lambda: throw(Odd("odd")),
    b"LINE": lambda: throw(ValueError("one\\n  two")),
    b"KILL": kill,
    b"ONCE": lambda: is_first() and kill(),
    b"GROW": grow,
    b"LARG": need_200_mb,
}
real = PIL.Image.open

def misbehave(file, *arguments, **options):
    ACTIONS.get(file.getvalue()[-4:], lambda: None)()
    return real(file, *arguments, **options)

PIL.Image.open = misbehave
"""
"""ONCE and LARG behave differently the first time; the file MARKER notes that there was one."""

GATE = """
import glob, os, time, PIL.Image
real = PIL.Image.open

def wait_for_the_gate(*arguments, **options):
    while len(glob.glob(os.environ["RECEIPTS"])) >= 2 and not os.path.exists(os.environ["GATE"]):
        time.sleep(0.01)
    return real(*arguments, **options)

PIL.Image.open = wait_for_the_gate
"""
"""Decoding stands still when two shards are finished, until the file GATE exists."""

FAILING_READS = """
import errno, os, pathlib
real = pathlib.Path.read_bytes

def read_bytes(path):
    if path.suffix == ".png":
        marker = pathlib.Path(os.environ["COUNTER"])
        if path.name == "bad.png" and len(marker.read_text()) < int(os.environ["FAILURES"]):
            marker.write_text(marker.read_text() + "x")
            number = int(os.environ["ERRNO"])
            raise OSError(number, os.strerror(number), str(path))
    return real(path)

pathlib.Path.read_bytes = read_bytes
"""

TRACE = """
import os, time, PIL.Image
real = PIL.Image.open

def trace(*arguments, **options):
    with open(os.environ["TRACE"], "a") as file:
        file.write(f"{time.monotonic_ns()} {os.getpid()}\\n")
    return real(*arguments, **options)

PIL.Image.open = trace
"""
"""The file TRACE gets a line for each picture: when, and by which process."""


def mark(path: Path, marker: bytes) -> None:
    path.write_bytes(path.read_bytes() + marker)


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Poll with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the deadline passed"
        time.sleep(0.01)


def running_children(pid: int | None = None) -> list[psutil.Process]:
    """Processes below a process (default: this one) that have not ended."""
    return [child for child in psutil.Process(pid).children(recursive=True) if is_running(child)]


def is_running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
