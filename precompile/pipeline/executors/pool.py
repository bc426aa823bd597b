"""The worker processes of one job: started, counted, ended."""

from __future__ import annotations

import contextlib
import itertools
import time
from pathlib import Path

from precompile.errors import BuildFailedError
from precompile.pipeline.compile_shard import Job
from precompile.pipeline.executors.heartbeat import remove_left
from precompile.pipeline.executors.process import WorkerProcess
from precompile.pipeline.layout import BuildDirs

_MAX_LOST = 3
"""Workers that may end without being on a sample, in a row, before the build gives up."""

_GOODBYE_SECONDS = 5.0
"""Idle workers that have not ended by then, such as those that still import torch, are killed."""


class WorkerPool:
    """Worker processes whose heartbeats and error output are in `directory`."""

    def __init__(self, job: Job, directory: Path) -> None:
        self._job = job
        self._directory = directory
        self._numbers = itertools.count()
        self._workers: list[WorkerProcess] = []
        self._lost = 0

    def __len__(self) -> int:
        return len(self._workers)

    def busy(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker.is_busy]

    def without_task(self) -> WorkerProcess | None:
        """One that can take a task, though it may still be making the shard of its last one durable."""
        return next((worker for worker in self._workers if worker.task is None), None)

    def start(self) -> WorkerProcess:
        worker = WorkerProcess(self._directory, next(self._numbers), self._job)
        self._workers.append(worker)
        return worker

    def remove(self, worker: WorkerProcess) -> None:
        """End a worker at once, if it has not ended, and delete the shards it leaves half written."""
        worker.stop()
        self._workers.remove(worker)
        for path in BuildDirs(self._job.root).unfinished.glob(f"*.{worker.pid}"):
            path.unlink(missing_ok=True)

    def lose(self, worker: WorkerProcess, how: str) -> None:
        """Remove a worker that ended, or has to, for no fault of a sample. Raises BuildFailedError if all do."""
        self.remove(worker)
        self._lost += 1
        if self._lost >= _MAX_LOST:
            words = worker.last_words() or "no error output"
            raise BuildFailedError(f"worker processes end without compiling anything ({how}): {words}")

    def heard(self) -> None:
        """A worker did something, so workers can work."""
        self._lost = 0

    def inputs_done(self) -> int:
        """Inputs of tasks that have no receipt yet."""
        return sum(worker.inputs_done() for worker in self._workers)

    def end(self, *, at_once: bool = False) -> None:
        """End all workers, and wait for it. Unless `at_once`, idle ones end by themselves."""
        workers, self._workers = self._workers, []
        with contextlib.ExitStack() as stack:  # does all of it, even if KeyboardInterrupt comes at any point
            stack.callback(remove_left, self._directory)
            for worker in workers:
                stack.callback(worker.stop)
            for worker in workers:
                worker.kill() if at_once or worker.is_busy else worker.dismiss()
            deadline = time.monotonic() + _GOODBYE_SECONDS
            for worker in workers:
                worker.wait(max(0.0, deadline - time.monotonic()))
