"""Background threads for copies, which leave torch's threads as they found them."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch

_IMPORTED_IN = os.getpid()
_limiting = threading.Lock()


def _renew_lock() -> None:
    global _limiting
    _limiting = threading.Lock()  # a thread of the parent may have held it when it forked


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class Work(Protocol):
    """Something to be done before it is used."""

    @property
    def fill(self) -> Callable[[], None]: ...


Job = TypeVar("Job", bound=Work)


def limit_this_thread() -> None:
    """Make torch operations of the calling thread single-threaded, and those of no other thread.

    Every thread that runs a parallel torch operation gets its own OpenMP team, so a loader without this would
    be N x K threads again. torch.set_num_threads changes the calling thread and the default of threads that
    start later; a short-lived second thread sets that default back.
    """
    with _limiting:
        default = torch.get_num_threads()
        if default > 1:
            torch.set_num_threads(1)
            restore = threading.Thread(target=torch.set_num_threads, args=(default,))
            restore.start()
            restore.join()


def background_threads(count: int = 1) -> ThreadPoolExecutor:
    """An executor of exactly `count` limited threads; they end with the interpreter, and when it is dropped."""
    executor = ThreadPoolExecutor(count, "precompile-loader", initializer=limit_this_thread)
    if count > 1:
        all_started = threading.Barrier(count)  # an executor starts a thread only when none is idle
        for _ in range(count):
            executor.submit(all_started.wait)
    return executor


def run_safely(work: Callable[[], None]) -> None:
    """Run torch copies in the calling thread, but in a limited one where the calling thread's OpenMP team may be dead.

    A forked child inherits the team of the thread that forked, without its threads, and waits for them for ever.
    """
    is_child = os.getpid() != _IMPORTED_IN or multiprocessing.parent_process() is not None
    if is_child and torch.get_num_threads() > 1:
        with background_threads() as thread:
            thread.submit(work).result()
    else:
        work()


def run_ahead(jobs: Iterator[Job], *, threads: int, ahead: int) -> Iterator[Job]:
    """The jobs in their order, each after its `fill` ran in one of `threads` threads; `ahead` of them are under way.

    `jobs` is advanced in the consumer's thread. With ahead=0 there are no threads: a job is filled when asked for.
    An exception of `fill` is raised to the consumer. After a fork in the middle the child goes on with its own threads.
    """
    if not ahead:
        for job in jobs:
            run_safely(job.fill)
            yield job
            del job
        return
    executor, owner = background_threads(threads), os.getpid()
    flying: deque[tuple[Job, Future[None]]] = deque()
    try:
        while True:
            if os.getpid() != owner:  # forked in the middle of the epoch: the threads stayed in the parent
                executor, owner = background_threads(threads), os.getpid()
                flying = deque((job, executor.submit(job.fill)) for job, _ in flying)
            for job in itertools.islice(jobs, ahead - len(flying)):
                flying.append((job, executor.submit(job.fill)))
            if not flying:
                return
            job, done = flying.popleft()
            done.result()
            del done
            yield job
            del job
    finally:
        if os.getpid() == owner:
            executor.shutdown(wait=True, cancel_futures=True)
