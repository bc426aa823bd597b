"""Tasks in worker processes of this machine, which may crash, hang or eat memory: it costs the sample, no more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path

from precompile.pipeline.compile_shard import Job, Task
from precompile.pipeline.executors.heartbeat import NO_SAMPLE
from precompile.pipeline.executors.limits import Limits
from precompile.pipeline.executors.pool import WorkerPool
from precompile.pipeline.executors.process import WorkerProcess
from precompile.pipeline.executors.verdict import Judge, Verdict
from precompile.pipeline.executors.worker import Compiled, Probe, Probed, Refused
from precompile.pipeline.journal import Receipt

_POLL_SECONDS = 0.1
_SILENT_SECONDS = 600.0
"""Between samples: starting, or making a large shard durable on a slow disk, may take long."""

OnProgress = Callable[[int], None]
OnAlone = Callable[[Task], None]


class LocalExecutor:
    """Runs tasks of one job in `workers` processes. A context manager; leaving it ends all processes.

    A task whose worker ran out of memory, or so it seems, is set aside and done at the end, with no other beside it.
    """

    def __init__(
        self,
        job: Job,
        directory: Path,
        *,
        workers: int,
        limits: Limits,
        on_progress: OnProgress,
        on_alone: OnAlone = lambda task: None,
    ) -> None:
        self._num_workers = workers
        self._limits = limits.measured()
        self._on_progress = on_progress
        self._on_alone = on_alone
        self._pool = WorkerPool(job, directory)
        self._judge = Judge()
        self._todo: deque[Task] = deque()
        self._aside: deque[Task] = deque()
        self._is_alone = False

    def __enter__(self) -> LocalExecutor:
        try:
            for _ in range(self._num_workers):  # all at once: a worker takes seconds to import torch
                self._pool.start()
        except BaseException:
            self._pool.end(at_once=True)
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.end(at_once=exception[0] is not None)

    def probe(self, samples: tuple[int, ...]) -> Probed:
        """Compile a few inputs without storing them. Those that kill or hang the worker count as not compilable."""
        sizes: list[Probed] = []
        for sample in samples:
            worker = self._pool.without_task() or self._pool.start()
            worker.send(Probe((sample,)))
            answer = self._wait_for(worker)
            if isinstance(answer, Probed):
                sizes.append(answer)
        return Probed(
            tuple(size for probed in sizes for size in probed.record_bytes),
            tuple(size for probed in sizes for size in probed.input_bytes),
            sum(probed.seconds for probed in sizes),
        )

    def _wait_for(self, worker: WorkerProcess) -> Probed | Compiled | Receipt | Verdict:
        while True:
            self._limits.check_deadline()
            if worker.connection.poll(_POLL_SECONDS):
                return self._hear(worker)
            verdict = self._watch(worker)
            if verdict is not None:
                return verdict

    def run(self, tasks: list[Task], *, alone: frozenset[int] = frozenset()) -> Iterator[Receipt]:
        """Receipts in the order in which tasks finish. Tasks whose number is in `alone` are set aside at once.

        Raises what a worker refused, BuildFailedError, or StoppedError at the deadline.
        """
        self._todo = deque(task for task in tasks if task.number not in alone)
        self._aside = deque(task for task in tasks if task.number in alone)
        self._is_alone = False
        yield from self._work()
        self._is_alone = True
        while self._aside:
            self._pool.end()  # to free their memory; each task gets a process that holds nothing of earlier ones
            self._on_alone(self._aside[0])
            self._todo.append(self._aside.popleft())
            yield from self._work()

    def _work(self) -> Iterator[Receipt]:
        """Until there is nothing to do and nothing runs."""
        while True:
            self._limits.check_deadline()
            self._assign()
            busy = self._pool.busy()
            if not busy:
                return
            ready = wait([worker.connection for worker in busy], _POLL_SECONDS)
            for worker in busy:
                if worker.connection in ready:
                    yield from self._receive(worker)
                elif (verdict := self._watch(worker)) is not None:
                    self._give_back(worker, verdict)
            self._on_progress(self._pool.inputs_done())

    def _assign(self) -> None:
        while self._todo:
            worker = self._pool.without_task()
            if worker is None:
                if len(self._pool) >= self._num_workers:
                    return
                worker = self._pool.start()
            worker.begin(self._todo.popleft())

    def _receive(self, worker: WorkerProcess) -> Iterator[Receipt]:
        answer = self._hear(worker)
        if isinstance(answer, Verdict):
            self._give_back(worker, answer)
        elif isinstance(answer, Receipt):
            del worker.finishing[answer.task]
            yield answer
        else:
            assert isinstance(answer, Compiled)
            assert worker.task is not None
            worker.finishing[answer.task] = worker.task
            worker.task = None

    def _hear(self, worker: WorkerProcess) -> Probed | Compiled | Receipt | Verdict:
        """What a worker says; or what follows from its death. Raises what it refuses."""
        try:
            message: Probed | Compiled | Receipt | Refused = worker.receive()
        except (EOFError, ConnectionResetError):
            return self._bury(worker)
        if isinstance(message, Refused):
            raise message.error
        self._pool.heard()
        return message

    def _bury(self, worker: WorkerProcess) -> Verdict:
        pulse, how = worker.pulse(), worker.how_it_died()
        if pulse.sample == NO_SAMPLE:
            self._pool.lose(worker, how)
            return Verdict()
        self._pool.remove(worker)
        return self._judge.died(pulse, how, worker.last_words(), alone=self._is_alone)

    def _watch(self, worker: WorkerProcess) -> Verdict | None:
        """End a worker that hangs or has grown too large, and say what becomes of its task; None if all is well."""
        pulse, num_bytes = worker.pulse(), worker.private_bytes()
        limit_bytes = self._limits.worker_bytes(1 if self._is_alone else self._num_workers)
        if pulse.sample == NO_SAMPLE:
            return self._watch_idle(worker, num_bytes, limit_bytes)
        if pulse.seconds > self._limits.timeout_seconds:
            verdict = self._judge.too_slow(pulse, self._limits.timeout_seconds)
        elif num_bytes > limit_bytes and worker.pulse().done == pulse.done:  # measured on that sample, not a later one
            verdict = self._judge.too_large(pulse, limit_bytes, alone=self._is_alone)
        else:
            return None
        self._pool.remove(worker)
        return verdict

    def _watch_idle(self, worker: WorkerProcess, num_bytes: int, limit_bytes: int) -> Verdict | None:
        """Between samples it is no sample's fault: the worker is replaced as if it had died."""
        if num_bytes > limit_bytes:
            self._pool.lose(worker, f"used more than {limit_bytes // 10**6} MB of memory")
        elif worker.silent_seconds() > max(_SILENT_SECONDS, self._limits.timeout_seconds):
            self._pool.lose(worker, f"silent for {worker.silent_seconds():.0f} s")
        else:
            return None
        return Verdict()

    def _give_back(self, worker: WorkerProcess, verdict: Verdict) -> None:
        """The tasks of a worker that ended are done again; the current one as the verdict says."""
        todo = self._aside if self._is_alone else self._todo
        todo.extendleft(worker.finishing.values())
        task = worker.task
        if task is None:
            return
        if verdict.failure is not None:
            task = replace(task, known={**task.known, verdict.sample: verdict.failure})
        if verdict.alone:
            self._aside.append(task)
        else:
            todo.appendleft(task)
