"""Which processes work for a loader."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from precompile.loading.watching.limited import within
from precompile.loading.watching.process_state import command_of, descendants, name_of, state_of

MAX_WORKERS = 64
"""As many are looked at where they have to be guessed."""
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True, slots=True)
class Worker:
    """One process."""

    name: str
    pid: int
    process: Any = None
    """The multiprocessing.Process, where there is one."""
    start_method: str = ""
    """`fork`, `spawn` or `forkserver`; empty when it is not known."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Those of one loader. `num_more`: how many others were left out."""

    known: tuple[Worker, ...] = ()
    num_more: int = 0
    are_guessed: bool = False
    """Whether these are just all processes that this one has started."""

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self.known]


def workers_of(iterator: Any, iterable: Any = None) -> Workers:
    """By torch's `_workers`, by what `watched_processes` of either gives as (name, pid), or all descendants."""
    iterator, iterable = _innermost(iterator, iterable)
    watched = getattr(iterator, "watched_processes", None) or getattr(iterable, "watched_processes", None)
    if callable(watched):
        return Workers(tuple(Worker(str(name), int(pid)) for name, pid in watched()))
    processes = getattr(iterator, "_workers", None)
    if isinstance(processes, Sequence) and processes and all(hasattr(process, "pid") for process in processes):
        started = [(number, process) for number, process in enumerate(processes) if process.pid is not None]
        return Workers(tuple(Worker(f"worker {number}", one.pid, one, _start_method(one)) for number, one in started))
    if isinstance(processes, Sequence) or getattr(iterator, "_num_workers", None) == 0:
        return Workers()  # torch's, in this process
    return _guessed()


def _innermost(iterator: Any, iterable: Any) -> tuple[Any, Any]:
    """What is watched in the end, where a watch watches a watch."""
    while hasattr(iterator, "watched_iterator"):
        iterator, iterable = iterator.watched_iterator, iterator.iterable
    return iterator, iterable


def _guessed() -> Workers:
    by_pid = {process.pid: process for process in _multiprocessing_children()}
    pids = [pid for pid in descendants(os.getpid()) if not _is_helper(pid)]
    known = []
    for pid in pids[:MAX_WORKERS]:
        process = by_pid.get(pid)
        name = process.name if process is not None else name_of(pid) or "process"
        known.append(Worker(name, pid, process, "" if process is None else _start_method(process)))
    return Workers(tuple(known), len(pids) - len(known), are_guessed=True)


def _multiprocessing_children() -> list[Any]:
    """Without `active_children`, which would reap the dead."""
    from multiprocessing import process

    return list(getattr(process, "_children", ()))


def _is_helper(pid: int) -> bool:
    command = within(0.2, lambda: command_of(pid), "")
    return any(helper in command for helper in _HELPERS)


def _start_method(process: Any) -> str:
    method = getattr(process, "_start_method", None)
    if method is None:
        import multiprocessing

        method = multiprocessing.get_start_method(allow_none=True)
    return method or ""


def exit_code(worker: Worker) -> int | None:
    """How it ended, negative: by which signal; None when it runs, or nobody knows."""
    state = state_of(worker.pid)
    if state.letter not in "ZX?" or state.exit_code is not None:
        return state.exit_code
    code: int | None = None if worker.process is None else worker.process.exitcode
    return code


def forget(iterable: Any, iterator: Any) -> None:
    """End the workers of an iteration of torch's that has failed: those that hang would keep this process from ending.

    A DataLoader with persistent workers starts new ones in its next iteration.
    """
    iterator, iterable = _innermost(iterator, iterable)
    processes = getattr(iterator, "_workers", None)
    if not isinstance(processes, Sequence) or not hasattr(iterator, "_shutdown_workers"):
        return
    with contextlib.suppress(ImportError, AttributeError):  # else torch raises wherever its consumer is
        from torch.utils.data._utils.signal_handling import _remove_worker_pids  # type: ignore[attr-defined]

        if getattr(iterator, "_worker_pids_set", False):
            _remove_worker_pids(id(iterator))
            iterator._worker_pids_set = False
    for process in processes:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            process.kill()
    if getattr(iterable, "_iterator", None) is iterator:
        iterable._iterator = None


def kill(workers: Workers) -> None:
    """Of those that are guessed only multiprocessing's: others may be no business of a loader."""
    for worker in workers.known:
        if worker.process is not None or not workers.are_guessed:
            with contextlib.suppress(OSError):
                os.kill(worker.pid, signal.SIGKILL)
