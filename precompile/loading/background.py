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

from precompile.errors import LoaderStalled

THREAD_NAME = "precompile-loader_"
"""What the names of copy threads begin with."""
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


class Waiting(Protocol):
    def look(self) -> None:
        """Raise when it has taken too long."""
        ...


class Patience(Protocol):
    """How long to wait."""

    @property
    def look_seconds(self) -> float:
        """After so long, and then so often, something is looked at."""
        ...

    def begin(self) -> Waiting: ...


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

    They start when they are needed, again in a process that forked, and end with `stop` or with this object.
    Plain queues and locks: beside copies that fill the caches, an executor's bookkeeping costs 5 % of a small batch.
    """

    def __init__(self, count: int = 1) -> None:
        self._count = count
        self._team: _Team | None = None

    @property
    def are_here(self) -> bool:
        """Whether they run, and in this process: after a fork they stayed in the parent."""
        return self._team is not None and self._team.owner == os.getpid() and not _is_ending

    def start(self) -> None:
        """Start them, unless they run. Raises RuntimeError when the interpreter ends."""
        if _is_ending:
            raise _ended()
        if not self.are_here:
            self._team = _Team(self._count)

    def submit(self, work: Callable[[], object]) -> Ticket:
        self.start()
        assert self._team is not None
        ticket = Ticket(work)
        self._team.todo.put(ticket)
        return ticket

    def stop(self) -> None:
        """Drop what has not begun, and wait for the threads to end."""
        team, self._team = self._team, None
        if team is not None and team.owner == os.getpid():
            team.dismiss()
            # The garbage collector may call this anywhere. A copy thread that waited for others could wait for ever.
            if threading.current_thread() not in _threads:
                for thread in team.threads:
                    thread.join()

    def abandon(self) -> None:
        """Drop what has not begun, and wait for nobody: a thread is stuck. It is left behind, also when Python ends."""
        team, self._team = self._team, None
        if team is not None:
            team.dismiss()
            _threads.difference_update(team.threads)


class _Team:
    """Threads that run from here on; they end when they are dismissed, or when this object is gone.

    An interrupt at any moment leaves none behind.
    """

    owner = -1
    """The process they run in."""

    def __init__(self, count: int) -> None:
        self.todo: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.owner = os.getpid()
        _teams.add(self)
        for number in range(count):
            name = f"{THREAD_NAME}{number}"
            thread = threading.Thread(target=_work, args=(self.todo,), name=name, daemon=True)
            _threads.add(thread)
            thread.start()
            self.threads.append(thread)

    def dismiss(self) -> None:
        """Drop what has not begun, and tell the threads to end; does not wait."""
        if self.owner != os.getpid():
            return
        with contextlib.suppress(queue.Empty):
            while True:
                if (ticket := self.todo.get_nowait()) is not None:
                    ticket.cancel()
        for _ in range(len(self.threads) + 1):  # one thread may have started without being noted
            self.todo.put(None)

    __del__ = dismiss


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

    def cancel(self) -> None:
        """Instead of `run`."""
        self._work = None
        self._error = RuntimeError("the threads of this Loader were stopped, so it gives no more batches")
        self._done.release()

    def wait(self, patience: Patience | None = None) -> None:
        """Until it is done; raises what it raised, or what `patience` raises when that takes too long."""
        if patience is None:
            self._done.acquire()
        elif not self._done.acquire(timeout=patience.look_seconds):
            waiting = patience.begin()
            while not self._done.acquire(timeout=patience.look_seconds):
                waiting.look()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error


_teams: weakref.WeakSet[_Team] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_is_ending = False


@atexit.register
def _end() -> None:
    """A thread that is inside of a torch operation while the interpreter ends would abort the process."""
    global _is_ending
    _is_ending = True
    for team in list(_teams):
        team.dismiss()
    for thread in list(_threads):
        if thread.is_alive():
            thread.join()


def _ended() -> RuntimeError:
    return RuntimeError("the interpreter ends, so a Loader gives no more batches")


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


def run_ahead(
    jobs: Iterator[Job], threads: CopyThreads, *, ahead: int, patience: Patience | None = None
) -> Generator[Job, None, None]:
    """The jobs in their order, each after its `fill` ran in one of the threads; `ahead` of them are under way.

    `jobs` is advanced in the consumer's thread. With ahead=0 no thread is used: a job is filled when it is asked for.
    An exception of `fill` is raised to the consumer. After a fork in the middle the child goes on with its own threads.
    The threads wait for the next epoch after a whole one, and are stopped when one ends in the middle.
    """
    if _is_ending:
        raise _ended()
    if not ahead:
        for job in jobs:
            run_safely(job.fill)
            yield job
            del job
        return
    flying: deque[tuple[Job, Ticket]] = deque()
    try:
        threads.start()
        while True:
            if not threads.are_here:
                flying = deque((job, threads.submit(job.fill)) for job, _ in flying)
            for job in itertools.islice(jobs, ahead - len(flying)):
                flying.append((job, threads.submit(job.fill)))
            if not flying:
                return
            job, ticket = flying.popleft()
            ticket.wait(patience)
            del ticket
            yield job
            del job
    except LoaderStalled:
        threads.abandon()
        raise
    except BaseException:  # GeneratorExit too
        threads.stop()
        raise


def run_started(jobs: Iterator[Job], *, ahead: int) -> Generator[Job, None, None]:
    """As `run_ahead`, for jobs that are begun elsewhere as soon as they are planned, and whose `fill` waits."""
    if _is_ending:
        raise _ended()
    flying: deque[Job] = deque()
    while True:
        flying.extend(itertools.islice(jobs, max(ahead, 1) - len(flying)))
        if not flying:
            return
        job = flying.popleft()
        job.fill()
        yield job
        del job
