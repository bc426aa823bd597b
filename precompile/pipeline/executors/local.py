"""Tasks in worker processes of this machine, which may crash or hang: it costs the sample, never the build."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from precompile.errors import BuildFailedError
from precompile.pipeline.compile_shard import Failure, Job, Task
from precompile.pipeline.executors.heartbeat import NO_SAMPLE
from precompile.pipeline.executors.process import WorkerProcess
from precompile.pipeline.executors.worker import Compiled, Probe, Probed, Refused
from precompile.pipeline.journal import Receipt

_POLL_SECONDS = 0.1
_MAX_ATTEMPTS = 2
"""A sample on which a worker died is tried once more, in case the worker was killed for another reason."""
_SILENT_SECONDS = 600.0
"""Between samples: starting, or making a large shard durable on a slow disk, may take long."""
_MAX_LOST_WORKERS = 3
"""Workers that may die without being on a sample, in a row, before the build gives up."""

OnProgress = Callable[[int], None]


class LocalExecutor:
    """Runs tasks of one job in `workers` processes. A context manager; leaving it ends all processes."""

    def __init__(
        self, job: Job, directory: Path, *, workers: int, timeout_seconds: float, on_progress: OnProgress
    ) -> None:
        self._job = job
        self._directory = directory
        self._workers = workers
        self._timeout_seconds = timeout_seconds
        self._on_progress = on_progress
        self._numbers = itertools.count()
        self._pool: list[WorkerProcess] = []
        self._deaths: dict[int, int] = {}
        self._lost = 0

    def __enter__(self) -> LocalExecutor:
        for _ in range(self._workers):  # all at once: a worker takes seconds to import torch
            self._start_worker()
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._pool:
            worker.connection.close()
        for worker in self._pool:
            worker.finish() if exception[0] is None and not worker.is_busy else worker.stop()
        self._pool.clear()

    def probe(self, samples: tuple[int, ...]) -> Probed:
        """Compile a few inputs without storing them. Those that kill or hang the worker count as not compilable."""
        sizes: list[Probed] = []
        for sample in samples:
            worker = self._pool[0] if self._pool else self._start_worker()
            worker.send(Probe((sample,)))
            answer = self._wait_for(worker)
            if isinstance(answer, Refused):
                raise answer.error
            if isinstance(answer, Probed):
                sizes.append(answer)
        return Probed(
            tuple(size for probed in sizes for size in probed.record_bytes),
            tuple(size for probed in sizes for size in probed.input_bytes),
            sum(probed.seconds for probed in sizes),
        )

    def _wait_for(self, worker: WorkerProcess) -> Any:
        while not worker.connection.poll(_POLL_SECONDS):
            pulse = worker.pulse()
            if pulse.sample != NO_SAMPLE and pulse.seconds > self._timeout_seconds:
                self._drop(worker)
                return None
        try:
            answer = worker.receive()
            self._lost = 0
            return answer
        except (EOFError, ConnectionResetError):
            self._count_lost(worker) if worker.pulse().sample == NO_SAMPLE else self._drop(worker)
            return None

    def run(self, tasks: list[Task]) -> Iterator[Receipt]:
        """Receipts in the order in which tasks finish. Raises what a worker refused, or BuildFailedError."""
        todo = deque(tasks)
        finished = 0
        while finished < len(tasks):
            self._assign(todo)
            busy = [worker for worker in self._pool if worker.is_busy]
            ready = wait([worker.connection for worker in busy], _POLL_SECONDS)
            for worker in busy:
                if worker.connection in ready:
                    receipt = self._receive(worker, todo)
                    if receipt is not None:
                        finished += 1
                        yield receipt
                else:
                    self._check_timeout(worker, todo)
            self._on_progress(sum(_inputs_done(worker) for worker in self._pool))

    def _assign(self, todo: deque[Task]) -> None:
        while todo:
            worker = next((worker for worker in self._pool if worker.task is None), None)
            if worker is None:
                if len(self._pool) >= self._workers:
                    return
                worker = self._start_worker()
            worker.task = todo.popleft()
            worker.done_before = worker.pulse().done
            worker.send(worker.task)

    def _receive(self, worker: WorkerProcess, todo: deque[Task]) -> Receipt | None:
        try:
            answer = worker.receive()
        except (EOFError, ConnectionResetError):
            self._bury(worker, todo)
            return None
        if isinstance(answer, Refused):
            raise answer.error
        self._lost = 0
        if isinstance(answer, Receipt):
            del worker.finishing[answer.task]
            return answer
        assert isinstance(answer, Compiled)
        assert worker.task is not None
        worker.finishing[answer.task] = worker.task
        worker.task = None
        return None

    def _bury(self, worker: WorkerProcess, todo: deque[Task]) -> None:
        """A worker died: its tasks go back; the sample it was on is left out once it has killed twice."""
        sample = worker.pulse().sample
        if sample == NO_SAMPLE:
            self._count_lost(worker)
            todo.extendleft(worker.unfinished_tasks())
            return
        self._pool.remove(worker)
        how = worker.how_it_died()
        self._deaths[sample] = attempts = self._deaths.get(sample, 0) + 1
        failure = None
        if attempts >= _MAX_ATTEMPTS:
            words = worker.last_words()
            message = f"the decoder ended its process ({how})" + (f": {words}" if words else "")
            failure = Failure("WorkerDied", message, attempts)
        self._give_back(worker, todo, sample, failure)

    def _check_timeout(self, worker: WorkerProcess, todo: deque[Task]) -> None:
        pulse = worker.pulse()
        if pulse.sample == NO_SAMPLE:
            self._check_silence(worker, todo)
            return
        if pulse.seconds <= self._timeout_seconds:
            return
        self._drop(worker)
        message = f"not finished after {self._timeout_seconds:g} s (--timeout)"
        self._give_back(worker, todo, pulse.sample, Failure("TimeoutError", message, 1))

    def _check_silence(self, worker: WorkerProcess, todo: deque[Task]) -> None:
        """A worker that hangs between samples (stopped, or in a storage that stalls) is replaced as if it had died."""
        if worker.silent_seconds() > max(_SILENT_SECONDS, self._timeout_seconds):
            worker.kill()
            self._count_lost(worker)
            todo.extendleft(worker.unfinished_tasks())

    def _give_back(self, worker: WorkerProcess, todo: deque[Task], sample: int, failure: Failure | None) -> None:
        """A dead worker's tasks are done again; its current one without `sample`, if that has failed for good."""
        if failure is not None and worker.task is not None:
            worker.task = replace(worker.task, known={**worker.task.known, sample: failure})
        todo.extendleft(worker.unfinished_tasks())

    def _drop(self, worker: WorkerProcess) -> None:
        worker.stop()
        self._pool.remove(worker)

    def _count_lost(self, worker: WorkerProcess) -> None:
        self._pool.remove(worker)
        how, words = worker.how_it_died(), worker.last_words()
        self._lost += 1
        if self._lost >= _MAX_LOST_WORKERS:
            raise BuildFailedError(
                f"worker processes end without compiling anything ({how}): {words or 'no error output'}"
            )

    def _start_worker(self) -> WorkerProcess:
        worker = WorkerProcess(self._directory, next(self._numbers), self._job)
        self._pool.append(worker)
        return worker


def _inputs_done(worker: WorkerProcess) -> int:
    """Inputs of tasks that have no receipt yet."""
    compiled = sum(task.stop - task.start for task in worker.finishing.values())
    return compiled + (0 if worker.task is None else worker.pulse().done - worker.done_before)
