"""watch: the batches of a loader, or an error that says why there are none."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Generic, NoReturn, TypeVar

from precompile.errors import LoaderStalled, WorkerDiedError
from precompile.loading.processes import activity
from precompile.loading.watching import child_signal, interrupt
from precompile.loading.watching.dead_workers import explanation, oom_kills
from precompile.loading.watching.monitor import Limits, Monitor
from precompile.loading.watching.waiting import Waiting
from precompile.loading.watching.worker_processes import forget, workers_of

Batch = TypeVar("Batch")
_NOTHING: Any = object()


def watch(
    iterable: Iterable[Batch],
    timeout: float = 600.0,
    *,
    warn_seconds: float = 30.0,
    exit_when_stuck: bool = True,
) -> Watched[Batch]:
    """The same batches, and LoaderStalled instead of waiting for ever.

        for images, labels in precompile.watch(loader, timeout=300): ...

    Works around any loader: torch's DataLoader with and without workers, precompile's Loader, a generator. It can be
    iterated as often as the loader itself, has its `len`, and has it as `.iterable`.

    Args:
        timeout: seconds that the start, one batch, or the end may take at most. While workers that read compiled
            datasets go from sample to sample, the time counts from the last such step: slow is not stalled.
        warn_seconds: after this time (at most half of the timeout) the logger `precompile` warns, a line per worker.
        exit_when_stuck: whether to end the process, with exit code 70 and after killing the workers, when the consumer
            is stuck where no exception reaches it, such as in C code. The report is then written to stderr as well.

    Raises:
        LoaderStalled: with the state of each worker (what it waits for, which sample it reads), all stacks, and what to
            do. The report also goes to the logger. Workers of a DataLoader are ended, since they would keep the process
            from ending; another iteration starts new ones.
        WorkerDiedError: in place of the RuntimeError by which a DataLoader says that a worker was killed; like that one
            it may come in the midst of the main thread's own work.

    It costs about a microsecond per batch and one sleeping thread per iteration. Stacks of workers need Linux, and
    workers that were forked, or `worker_init_fn=precompile.init_worker`. C code that keeps the GIL stops the watching,
    too. In a thread other than the main one, a wait ends only when the loader looks up (torch's does, every 5 s). In
    the main thread the signal SIGRTMAX-4 is used while it iterates; workers are asked for stacks by SIGRTMAX-3.
    """
    for name, value in (("timeout", timeout), ("warn_seconds", warn_seconds)):
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < threading.TIMEOUT_MAX:
            raise ValueError(f"{name} must be a number of seconds above 0, got {name}={value!r}")
    if not hasattr(iterable, "__iter__"):
        raise TypeError(f"watch needs an iterable, such as a DataLoader, got {type(iterable).__name__}")
    warn_seconds = min(warn_seconds, timeout / 2)
    limits = Limits(timeout_seconds=timeout, warn_seconds=warn_seconds, exit_when_stuck=exit_when_stuck)
    return Watched(iterable, limits)


class Watched(Generic[Batch]):
    """What `watch` gives. `iterable` is what it watches."""

    def __init__(self, iterable: Iterable[Batch], limits: Limits) -> None:
        self.iterable, self.limits = iterable, limits

    def __iter__(self) -> Iterator[Batch]:
        return WatchedIterator(self.iterable, self.limits)

    def __len__(self) -> int:
        """Raises TypeError where the iterable has none."""
        return len(self.iterable)  # type: ignore[arg-type]


class WatchedIterator(Iterator[Batch]):
    """One iteration. Its monitor ends with it, and at any exception; what goes on after one gets another."""

    _process = -1
    """Where the monitor runs."""

    def __init__(self, iterable: Iterable[Batch], limits: Limits) -> None:
        activity.begin()  # workers that are forked from here on have it
        self._limits = limits
        self._waiting = Waiting(iterable)
        self._kills = oom_kills()
        self._next: Iterator[Batch] = iter(())
        self._start_monitor()
        self._run("start", self._start)
        child_signal.add(self)

    @property
    def watched_iterator(self) -> Any:
        """What the batches come from; None after the end."""
        return self._waiting.iterator

    @property
    def iterable(self) -> Any:
        return self._waiting.iterable

    def _start(self) -> None:
        self._waiting.iterator = iterator = iter(self._waiting.iterable)
        # One C call per batch, so that an interrupt comes before a batch or after, and none is lost.
        self._next = map(next, itertools.repeat(iterator))

    def __next__(self) -> Batch:
        waiting = self._waiting
        if self._process != os.getpid():
            self._start_monitor()
        batch = _NOTHING
        waiting.begin("batch")
        try:
            for batch in self._next:  # noqa: B007
                break
            waiting.end()
        except waiting.interrupted as interrupted:
            waiting.end()
            if batch is _NOTHING:
                self._raise_stall(interrupted)
        except BaseException as error:
            waiting.end()
            self._fail(error)
        if batch is _NOTHING:
            self.close()
            raise StopIteration
        waiting.num_batches += 1
        return batch  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the iteration, and wait for its workers to end."""
        if self._process == os.getpid():
            self._run("shutdown", self._let_go)
            self._stop_monitor()
        else:  # never begun here, or forked: the workers belong to the parent
            self._next, self._waiting.iterator = iter(()), None

    def __del__(self) -> None:
        if self._process == os.getpid() and not sys.is_finalizing():
            self.close()

    def _let_go(self) -> None:
        waiting = self._waiting
        iterator, self._next = waiting.iterator, iter(())
        is_ours = iterator is not waiting.iterable  # else whoever made it may go on with it
        if is_ours and isinstance(iterator, Generator):
            iterator.close()
        elif is_ours and not getattr(iterator, "_persistent_workers", True):
            # torch's; the same in its __del__ could raise nothing.
            getattr(iterator, "_shutdown_workers", _do_nothing)()
        waiting.iterator = None

    def _run(self, step: str, call: Callable[[], None]) -> None:
        """`call`, as one wait."""
        waiting = self._waiting
        waiting.begin(step)
        try:
            call()
            waiting.end()
        except waiting.interrupted as interrupted:
            waiting.end()
            self._raise_stall(interrupted)
        except BaseException as error:
            waiting.end()
            self._fail(error)
        if waiting.was_raised:  # something has swallowed it, such as a __del__
            self._raise_stall(None)

    def _raise_stall(self, interrupted: BaseException | None) -> NoReturn:
        waiting = self._waiting
        stalled = LoaderStalled(waiting.report)
        waiting.was_raised = False
        try:
            if waiting.step != "shutdown":
                forget(waiting.iterable, waiting.iterator)
                with contextlib.suppress(Exception):
                    self._run("shutdown", self._let_go)
        finally:
            self._stop_monitor()
        raise stalled.with_traceback(None if interrupted is None else interrupted.__traceback__) from None

    def _fail(self, error: BaseException) -> NoReturn:
        """Raise it, or WorkerDiedError in its place."""
        try:
            died = self.died(error) if isinstance(error, Exception) else None
        finally:
            self._stop_monitor()
        if died is not None or isinstance(error, WorkerDiedError):
            # Who was killed may hold a lock of a queue, and the others would wait for it at their end.
            forget(self._waiting.iterable, self._waiting.iterator)
        if died is not None:
            raise died from error
        raise error

    def died(self, error: Exception) -> WorkerDiedError | None:
        """What is to be raised in place of it; None when no worker has died."""
        died = explanation(error, workers_of(self._waiting.iterator, self._waiting.iterable), self._kills)
        count = self._waiting.num_batches
        return None if died is None else WorkerDiedError(f"after {count} batch{'es' * (count != 1)}: {died}")

    def _start_monitor(self) -> None:
        self._waiting.reset()
        interrupt.add(self._waiting)
        if self._waiting.iterator is not None:
            child_signal.add(self)
        self._monitor = Monitor(self._waiting, self._limits)
        self._process = os.getpid()

    def _stop_monitor(self) -> None:
        if self._process == os.getpid():
            self._process = -1
            try:
                self._monitor.stop()
            finally:
                interrupt.remove(self._waiting)
                child_signal.remove(self)


def _do_nothing() -> None:
    return
