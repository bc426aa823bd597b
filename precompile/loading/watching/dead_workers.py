"""Why a worker process ended, with the evidence."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from precompile import machine
from precompile.errors import WorkerDiedError
from precompile.loading.watching.worker_processes import Workers, exit_code
from precompile.machine import MemoryLimits

_GIB = 2**30
_DYING_SECONDS = 0.5
_OF_TORCH = re.compile(r"DataLoader worker \(pid")
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class OomKills:
    """How many processes the kernel has ended for want of memory so far; None where it does not say."""

    container: int | None
    """In this cgroup and the groups around it."""
    machine: int | None


@dataclass(frozen=True, slots=True)
class Evidence:
    before: OomKills
    now: OomKills
    memory: MemoryLimits
    shared_used_bytes: int
    """Of /dev/shm."""
    shared_total_bytes: int


def oom_kills(*, root: Path = machine.ROOT) -> OomKills:
    counts = []
    for folder in machine.cgroup_folders("memory", root):
        for name in ("memory.events", "memory.oom_control"):
            counts += _counts(folder / name)
    return OomKills(sum(counts) if counts else None, next(iter(_counts(root / "proc/vmstat")), None))


def gather(before: OomKills, *, root: Path = machine.ROOT) -> Evidence:
    used = total = 0
    with contextlib.suppress(OSError):
        stat = os.statvfs(_SHARED_MEMORY)
        total = stat.f_blocks * stat.f_frsize
        used = total - stat.f_bfree * stat.f_frsize
    return Evidence(before, oom_kills(root=root), machine.memory(root=root), used, total)


def how_it_ended(code: int) -> str:
    """`was killed by SIGKILL`, `exited with code 3`. code: as of multiprocessing, negative for a signal."""
    return f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with code {code}"


def why(code: int, evidence: Evidence) -> str:
    """What that means, in a sentence or two."""
    if code >= 0:
        return _why_exit(code)
    name = _signal_name(-code)
    if name == "SIGKILL":
        return _why_killed(evidence)
    if name == "SIGBUS":
        shared = f"/dev/shm has {_gib(evidence.shared_used_bytes)} of {_gib(evidence.shared_total_bytes)} in use"
        return f"A file that it had mapped was truncated, or a RAM disk or shared memory is full: {shared}."
    if name in ("SIGSEGV", "SIGILL", "SIGFPE", "SIGABRT"):
        return ("The code of a library did that. `python -X faulthandler` shows where, in the output of the worker; "
                "without workers it happens in this process.")  # fmt: skip
    if name in ("SIGTERM", "SIGINT", "SIGHUP"):
        return "Somebody asked it to end: a scheduler, a parent, or a person."
    return "Somebody sent it that signal."


def _why_exit(code: int) -> str:
    if code == 0:
        return "It ended by itself: it has given all it had (an IterableDataset), or the dataset ended the process."
    return (
        "Something in the dataset called sys.exit or os._exit, or the worker could not start; see what it has written."
    )


def _why_killed(evidence: Evidence) -> str:
    memory = evidence.memory
    limit = "the container has no limit of its own"
    if memory.cgroup_limit_bytes is not None:
        used = _gib(memory.cgroup_used_bytes or 0)
        limit = f"{used} of the container's limit of {_gib(memory.cgroup_limit_bytes)} in use"
    room = f"{limit}, {_gib(memory.available_bytes)} of {_gib(memory.total_bytes)} available"
    end = f"Memory now: {room}. To need less: fewer workers, fewer batches ahead, smaller batches, or precompile."
    since = "since the iteration began"
    here = _more(evidence.before.container, evidence.now.container)
    if here:
        return f"The kernel's OOM killer did it: it has ended {here} process(es) of this container {since}. {end}"
    anywhere = _more(evidence.before.machine, evidence.now.machine)
    if anywhere:
        return f"Probably the kernel's OOM killer: it has ended {anywhere} process(es) of this machine {since}. {end}"
    return (f"Probably the kernel's OOM killer or a limit of the container, though no such kill was counted {since}; "
            f"else somebody's kill -9. {end}")  # fmt: skip


def _more(before: int | None, now: int | None) -> int:
    return 0 if before is None or now is None else max(0, now - before)


def describe(dead: Sequence[tuple[str, int, int]], evidence: Evidence) -> str:
    """(name, pid, exit code) of each -> some sentences."""
    ended = "; ".join(f"{name} (pid {pid}) {how_it_ended(code)}" for name, pid, code in dead)
    reasons = dict.fromkeys(why(code, evidence) for _, _, code in dead)
    return f"{ended}. {' '.join(reasons)}"


def explanation(error: Exception, workers: Workers, before: OomKills) -> str | None:
    """Which of the workers have died, and why, when that can be the reason for the error; else None."""
    if isinstance(error, WorkerDiedError) or (workers.are_guessed and "worker" not in str(error)):
        return None
    dead = _dead(workers)
    until = time.monotonic() + _DYING_SECONDS
    while not dead and isinstance(error, OSError | EOFError) and workers.known and time.monotonic() < until:
        time.sleep(0.02)  # its connections end before it does
        dead = _dead(workers)
    if not _OF_TORCH.search(str(error)):
        dead = [one for one in dead if one[2]]  # an IterableDataset may have given all it had
    return describe(dead, gather(before)) if dead else None


def _dead(workers: Workers) -> list[tuple[str, int, int]]:
    """(name, pid, exit code) of each."""
    ended = [(worker.name, worker.pid, exit_code(worker)) for worker in workers.known]
    return [(name, pid, code) for name, pid, code in ended if code is not None]


def _counts(path: Path) -> list[int]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    return [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"
