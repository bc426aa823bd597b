"""All tasks of a plan -> their receipts: cut, resume what an interrupted build finished, run the rest."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from precompile import machine
from precompile.errors import TooManyFailuresError
from precompile.pipeline.compile_input import Job
from precompile.pipeline.compile_shard import Task
from precompile.pipeline.estimate import expected_bytes
from precompile.pipeline.executors.limits import Limits
from precompile.pipeline.executors.local import LocalExecutor
from precompile.pipeline.journal import Receipt, load_receipt
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.options import BuildOptions
from precompile.pipeline.output import check_room
from precompile.pipeline.plan import cut_tasks
from precompile.pipeline.progress import Progress
from precompile.pipeline.quarantine import Quarantined
from precompile.pipeline.reuse import NONE
from precompile.pipeline.sample_rates import SampleRates
from precompile.pipeline.storage import empty_dir
from precompile.pipeline.suspect_tasks import SuspectTasks
from precompile.pipeline.suspects import Suspects
from precompile.pipeline.work import Work

_PROBES = 16
_INDEX_BYTES = 256
"""An input, in plan, receipts and index."""


class PlanCompiler:
    """Compiles one plan into shards and receipts in `dirs`; the lock on `dirs` must be held."""

    def __init__(
        self,
        dirs: BuildDirs,
        work: Work,
        job: Job,
        *,
        options: BuildOptions,
        deadline: float | None,
        progress: Progress,
    ) -> None:
        self._dirs, self._work, self._job = dirs, work, job
        self._options, self._deadline, self._progress = options, deadline, progress
        self._rates = SampleRates(work.plan.keys)

    def run(self) -> list[Receipt]:
        """What was kept, and the receipts of all tasks, in task order.

        Raises StorageError, NoRoomError, StoppedError, TooManyFailuresError, BuildFailedError, or RecipeError for
        mixed rates.
        """
        self._check_rates(list(self._work.kept))
        if not len(self._work.order):
            return list(self._work.kept)
        suspects = Suspects.open(self._dirs)
        bounds = self._work.read_bounds(self._dirs.plan)
        if bounds is None:
            self._dirs.plan.mkdir(parents=True, exist_ok=True)
            self._work.save(self._dirs.plan)
            empty_dir(self._dirs.receipts)
        empty_dir(self._dirs.workers)
        empty_dir(self._dirs.unfinished)
        workers = min(self._options.workers or machine.usable_cpus(), len(self._work.order))
        watch = SuspectTasks(self._work, suspects)
        with LocalExecutor(
            self._job,
            self._dirs.workers,
            workers=workers,
            limits=Limits(self._options.timeout_seconds, deadline=self._deadline),
            on_progress=self._progress.running,
            on_alone=watch.begin_alone,
        ) as executor:
            if bounds is None:
                bounds = self._cut(executor, watch)
            tasks = [watch.task(n, *span) for n, span in enumerate(itertools.pairwise(bounds.tolist()))]
            receipts = [receipt for task in tasks if (receipt := self._finished(task)) is not None]
            self._check_rates(receipts)
            self._say_start(tasks, receipts, workers)
            done = {receipt.task for receipt in receipts}
            todo = [task for task in tasks if task.number not in done]
            alone = frozenset(task.number for task in todo if watch.suspects_in(task))
            for receipt in executor.run(todo, alone=alone):
                watch.end_alone(tasks[receipt.task])
                self._note(receipt)
                receipts.append(receipt)
                self._check_rates([receipt])
        return [*self._work.kept, *sorted(receipts, key=lambda receipt: receipt.task)]

    def _cut(self, executor: LocalExecutor, watch: SuspectTasks) -> np.ndarray:
        work, fixed = self._work, self._work.bounds
        rest = work.order[fixed[-1] :]
        probed = None
        if work.reuse.earlier is None:
            inputs = watch.harmless(work.to_compile())
            chosen = inputs[np.linspace(0, len(inputs) - 1, min(_PROBES, len(inputs))).round().astype(np.int64)]
            watch.begin_probing(chosen)
            probed = executor.probe(tuple(np.unique(chosen).tolist()))
            watch.end_probing(chosen)
        needed = expected_bytes(work.plan, work.reuse, work.order, probed).needed
        check_room(self._dirs, needed + _INDEX_BYTES * len(work.plan))
        bounds = fixed
        if len(rest):
            written = expected_bytes(work.plan, work.reuse, rest, probed).written
            bounds = np.concatenate(
                [fixed[:-1], fixed[-1] + cut_tasks(len(rest), written, self._job.recipe.shard_size)]
            )
        work.save_bounds(self._dirs.plan, bounds)
        return bounds

    def _finished(self, task: Task) -> Receipt | None:
        receipt = load_receipt(self._dirs.receipts, task.number)
        if receipt is None or (receipt.quarantined and self._options.retry_quarantined):
            return None
        self._stop_on_error(receipt)
        if receipt.shard is None:
            return receipt
        path = self._dirs.shards / receipt.shard.file
        return receipt if path.exists() and path.stat().st_size == receipt.shard.bytes else None

    def _say_start(self, tasks: list[Task], receipts: list[Receipt], workers: int) -> None:
        done = len(receipts) + len(self._work.kept)
        earlier = f" ({_count(done, 'shard')} {'is' if done == 1 else 'are'} done already)" if done else ""
        shards, processes = _count(len(tasks), "shard"), _count(workers, "worker process", "es")
        inputs = len(self._work.order)
        self._progress.say(f"compiling {inputs} inputs into {shards} with {processes}{earlier}")
        self._progress.event("info", "started", inputs=inputs, tasks=len(tasks), resumed=done, workers=workers)
        self._progress.skip(sum(receipt.inputs for receipt in receipts))

    def _check_rates(self, receipts: list[Receipt]) -> None:
        if self._job.recipe.sample_rate is not None:
            return
        earlier, rows = self._work.reuse.earlier, self._work.reuse.rows
        reused = np.flatnonzero(rows != NONE)[:1]
        if earlier is not None and len(reused):
            self._rates.add(earlier.columns(rows[reused]).get("sample_rate"), reused)
        for receipt in receipts:
            self._rates.add(receipt.columns.get("sample_rate"), receipt.samples)

    def _note(self, receipt: Receipt) -> None:
        for row in self._failures(receipt):
            self._progress.event(
                "warning", "quarantined", task=receipt.task, sample=row.key, stage=row.stage, message=row.message
            )
        self._stop_on_error(receipt)
        self._progress.event("info", "shard finished", task=receipt.task, seconds=round(receipt.seconds, 3))
        self._progress.finish(receipt.inputs)

    def _stop_on_error(self, receipt: Receipt) -> None:
        failures = self._failures(receipt)
        if failures and self._options.on_error == "stop":
            raise TooManyFailuresError(f"{failures[0]}; stopped by on_error=stop, nothing was committed")

    def _failures(self, receipt: Receipt) -> list[Quarantined]:
        """Also inputs that are new, but whose content is known to fail."""
        failures = [row for _, row in receipt.quarantined]
        earlier, keys = self._work.reuse.earlier, self._work.plan.keys
        for sample, row in receipt.same.tolist():
            if row < 0 and earlier is not None and earlier.quarantined[-1 - row].key != keys[sample]:
                failures.append(replace(earlier.quarantined[-1 - row], key=keys[sample]))
        return failures


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"
