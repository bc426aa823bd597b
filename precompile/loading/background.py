"""Background threads for copies, which leave torch's threads as they found them."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import multiprocessing
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
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
    def fill(self) -> Callable[[], object]: ...


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


class CopyThreads:
    """Limited threads that run jobs in the order they were given. Used by one thread.

    They start with the first `submit`, again in a process that forked, and end with `stop` or with this object.
    Plain queues and locks: beside copies that fill the caches, an executor's bookkeeping costs 5 % of a small batch.
    """

    def __init__(self, count: int = 1) -> None:
        self._count = count
        self._owner: int | None = None

    @property
    def are_here(self) -> bool:
        """Whether they run, and in this process: after a fork they stayed in the parent."""
        return self._owner == os.getpid()

    def start(self) -> None:
        """Start them, unless they run."""
        if self.are_here:
            return
        self._owner = os.getpid()
        self._todo: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        names = [f"precompile-loader_{number}" for number in range(self._count)]
        self._threads = [threading.Thread(target=_work, args=(self._todo,), name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()
        _running.add(self)

    def submit(self, work: Callable[[], object]) -> Ticket:
        self.start()
        ticket = Ticket(work)
        self._todo.put(ticket)
        return ticket

    def stop(self) -> None:
        """Drop what has not begun, and wait for the threads to end."""
        if not self.are_here:
            return
        with contextlib.suppress(queue.Empty):
            while True:
                self._todo.get_nowait()
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():  # the garbage collector may run anywhere
                thread.join()
        self._owner = None

    __del__ = stop


class Ticket:
    """One piece of work, and whether it is done."""

    __slots__ = ("_done", "_error", "_work")

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def run(self) -> None:
        assert self._work is not None
        try:
            self._work()
        except BaseException as error:
            trace = error.__traceback__
            # Without this frame, which refers to the ticket: a cycle would keep all that the work has held.
            self._error = error.with_traceback(trace.tb_next if trace else None)
        finally:
            self._work = None  # what it holds is free as soon as it is done
            self._done.release()

    def wait(self) -> None:
        """Until it is done; raises what it raised."""
        self._done.acquire()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    @property
    def is_done(self) -> bool:
        return not self._done.locked()


_running: weakref.WeakSet[CopyThreads] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """A thread that is inside of a torch operation while the interpreter ends would abort the process."""
    for threads in list(_running):
        threads.stop()


def _work(todo: queue.SimpleQueue[Ticket | None]) -> None:
    limit_this_thread()
    while (ticket := todo.get()) is not None:
        ticket.run()
        del ticket


def run_safely(work: Callable[[], object]) -> None:
    """Run torch copies in the calling thread, but in a limited one where the calling thread's OpenMP team may be dead.

    A forked child inherits the team of the thread that forked, without its threads, and waits for them for ever.
    """
    is_child = os.getpid() != _IMPORTED_IN or multiprocessing.parent_process() is not None
    if not is_child or torch.get_num_threads() == 1:
        work()
        return
    thread = CopyThreads()
    try:
        thread.submit(work).wait()
    finally:
        thread.stop()


def run_ahead(jobs: Iterator[Job], threads: CopyThreads, *, ahead: int) -> Generator[Job, None, None]:
    """The jobs in their order, each after its `fill` ran in one of the threads; `ahead` of them are under way.

    `jobs` is advanced in the consumer's thread. With ahead=0 no thread is used: a job is filled when it is asked for.
    An exception of `fill` is raised to the consumer. After a fork in the middle the child goes on with its own threads.
    The threads wait for the next epoch after a whole one, and are stopped when one ends in the middle.
    """
    if not ahead:
        for job in jobs:
            run_safely(job.fill)
            yield job
            del job
        return
    threads.start()
    flying: deque[tuple[Job, Ticket]] = deque()
    try:
        while True:
            if not threads.are_here:
                flying = deque((job, threads.submit(job.fill)) for job, _ in flying)
            for job in itertools.islice(jobs, ahead - len(flying)):
                flying.append((job, threads.submit(job.fill)))
            if not flying:
                return
            job, ticket = flying.popleft()
            ticket.wait()
            del ticket
            yield job
            del job
    except BaseException:  # GeneratorExit too
        threads.stop()
        raise
