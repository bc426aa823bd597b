"""The Python stacks of another process, even one that is stuck: a signal makes it write them into memory.

The signal is handled by `faulthandler`, in C and without the GIL, so it works in a deadlock and inside of C code.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import time
from pathlib import Path

from precompile.loading.processes import memfd

with contextlib.suppress(ImportError):  # not on Windows
    import fcntl

NAME = "precompile-stacks"
SIGNAL: int = getattr(signal, "SIGRTMAX", 64) - 3
"""Real-time signals have no meaning of their own. Libraries that want one take the first (libc itself, debuggers,
profilers) or the very last, so this is neither; the ordinary ones all belong to somebody (SIGUSR1 to Slurm and to
torchelastic, SIGPROF to profilers)."""
_POLL_SECONDS = 0.002
_FILE = {"fd": -1, "owner": -1}


def begin() -> None:
    """Let others ask for the stacks of this process. Does nothing the second time, and where it cannot be had.

    It stays for the life of the process, since a signal that came after the end would kill it. Processes that are
    forked later begin by themselves.
    """
    if _FILE["owner"] == os.getpid() or not hasattr(faulthandler, "register"):
        return
    if callable(signal.getsignal(SIGNAL)):
        return  # it is the user's
    fd = memfd.create(NAME)
    if fd is None:
        return
    _append_only(fd)
    faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=False)
    inherited = _FILE["fd"]
    _FILE.update(fd=fd, owner=os.getpid())
    if inherited >= 0:
        os.close(inherited)


def _begin_in_child() -> None:
    if _FILE["fd"] >= 0:
        begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


def stacks_of(pid: int, timeout_seconds: float) -> str | None:
    """The stacks of all threads of a process that called `begin`, the most recent call first.

    None when they cannot be had in time: it never began, it is stopped or dead, or all its threads wait in calls
    of the system that no signal interrupts. Ask about one process at a time, and from one thread.
    """
    if not _can_answer(pid):
        return None
    fd = memfd.open_of(pid, NAME, os.O_RDWR)
    if fd is None:
        return None
    try:
        return _ask(pid, fd, timeout_seconds)
    except OSError:  # it ended meanwhile
        return None
    finally:
        os.close(fd)


def _ask(pid: int, fd: int, timeout_seconds: float) -> str | None:
    """Any thread can write the stacks of all; the main one is asked first, since others may be short-lived."""
    now = time.monotonic()
    deadline = now + timeout_seconds
    before = os.fstat(fd).st_size
    for thread in sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=lambda number: (number != pid, number)):
        if _has(pid, thread, "SigBlk"):
            continue
        _send(pid, thread)
        until = now + timeout_seconds / 2 if thread == pid else deadline
        while (is_left := time.monotonic() < until) and not _has_answered(pid, thread, fd, before):
            time.sleep(_POLL_SECONDS)
        if is_left:
            text = os.pread(fd, os.fstat(fd).st_size - before, before)
            os.ftruncate(fd, before)
            return text.decode(errors="replace")
    return None


def _has_answered(pid: int, thread: int, fd: int, before: int) -> bool:
    """The signal is pending until the thread takes it, and blocked as long as the handler runs."""
    if os.fstat(fd).st_size == before:
        return False
    return not any(_has(pid, thread, name) for name in ("SigPnd", "ShdPnd", "SigBlk"))


def _can_answer(pid: int) -> bool:
    """Whether the signal would be handled; where it would not be, it would kill."""
    status = _status(pid, pid)
    return status.get("State", "Z")[0] not in "TtZX" and _has(pid, pid, "SigCgt")


def _has(pid: int, thread: int, mask: str) -> bool:
    return bool(int(_status(pid, thread).get(mask, "0"), 16) >> (SIGNAL - 1) & 1)


def _status(pid: int, thread: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/task/{thread}/status").read_text(errors="replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _send(pid: int, thread: int) -> None:
    """To that thread; where the C library cannot, to the process."""
    send_to_thread = getattr(ctypes.CDLL(None), "tgkill", None)
    if send_to_thread is None:
        os.kill(pid, SIGNAL)
    else:
        send_to_thread(pid, thread, SIGNAL)


def _append_only(fd: int) -> None:
    """What is read is cut off again, and the next stacks must not leave a hole."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
