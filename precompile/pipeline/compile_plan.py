"""All tasks of a plan -> their receipts: cut, resume what an interrupted build finished, run the rest."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass

import numpy as np

from precompile import machine
from precompile.errors import RecipeError, TooManyFailuresError
from precompile.pipeline.checksum import values_checksum
from precompile.pipeline.compile_shard import Job, Task
from precompile.pipeline.executors.local import LocalExecutor
from precompile.pipeline.executors.worker import Probed
from precompile.pipeline.journal import Receipt, load_receipt
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.options import BuildOptions
from precompile.pipeline.output import check_room
from precompile.pipeline.plan import Plan, cut_tasks
from precompile.pipeline.progress import Progress
from precompile.pipeline.storage import empty_dir, write_atomically

_PROBES = 16


@dataclass(frozen=True, slots=True)
class PlanCompiler:
    """Compiles one plan into shards and receipts in `dirs`; the lock on `dirs` must be held."""

    dirs: BuildDirs
    plan: Plan
    job: Job
    recipe_digest: str
    options: BuildOptions
    progress: Progress

    def run(self) -> list[Receipt]:
        """Receipts of all tasks, in task order.

        Raises StorageError, NoRoomError, TooManyFailuresError, BuildFailedError, or RecipeError for mixed rates.
        """
        bounds = self._earlier_bounds()
        if bounds is None:
            for directory in (self.dirs.plan, self.dirs.receipts):
                empty_dir(directory)
            self.plan.save(self.dirs.plan)
        empty_dir(self.dirs.workers)
        empty_dir(self.dirs.unfinished)
        workers = min(self.options.workers or machine.usable_cpus(), len(self.plan))
        with LocalExecutor(
            self.job,
            self.dirs.workers,
            workers=workers,
            timeout_seconds=self.options.timeout_seconds,
            on_progress=self.progress.running,
        ) as executor:
            if bounds is None:
                bounds = self._cut(executor)
            ends = bounds.tolist()
            tasks = [Task(number, *span, {}) for number, span in enumerate(itertools.pairwise(ends))]
            receipts = [receipt for task in tasks if (receipt := self._finished(task)) is not None]
            self._say_start(tasks, receipts, workers)
            done = {receipt.task for receipt in receipts}
            for receipt in executor.run([task for task in tasks if task.number not in done]):
                self._note(receipt)
                receipts.append(receipt)
                self._check_rates([receipts[0], receipt])
        return sorted(receipts, key=lambda receipt: receipt.task)

    def _earlier_bounds(self) -> np.ndarray | None:
        """Where an interrupted build of the same plan cut its tasks; its receipts are then good."""
        try:
            facts = json.loads((self.dirs.plan / "plan.json").read_text())
            if facts["identity"] != self._identity() or self.options.rebuild:
                return None
            return np.array(facts["bounds"], np.int64)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _identity(self) -> str:
        return values_checksum(self.plan.digest, self.recipe_digest, self.plan.paths)

    def _cut(self, executor: LocalExecutor) -> np.ndarray:
        chosen = np.linspace(0, len(self.plan) - 1, min(_PROBES, len(self.plan))).round().astype(np.int64)
        total_bytes = _expected_bytes(self.plan, executor.probe(tuple(np.unique(chosen).tolist())))
        check_room(self.dirs, total_bytes)
        bounds = cut_tasks(self.plan, total_bytes, self.job.recipe.shard_size)
        facts = {"identity": self._identity(), "bounds": bounds.tolist()}
        write_atomically(self.dirs.plan / "plan.json", json.dumps(facts).encode())
        return bounds

    def _finished(self, task: Task) -> Receipt | None:
        receipt = load_receipt(self.dirs.receipts, task.number)
        if receipt is None or (receipt.quarantined and self.options.retry_quarantined):
            return None
        self._stop_on_error(receipt)
        if receipt.shard is None:
            return receipt
        path = self.dirs.shards / receipt.shard.file
        return receipt if path.exists() and path.stat().st_size == receipt.shard.bytes else None

    def _say_start(self, tasks: list[Task], receipts: list[Receipt], workers: int) -> None:
        earlier = f" ({len(receipts)} shards are done already)" if receipts else ""
        shards, processes = _count(len(tasks), "shard"), _count(workers, "worker process", "es")
        text = f"compiling {len(self.plan)} inputs into {shards} with {processes}{earlier}"
        self.progress.say(text)
        self.progress.event(
            "info", "started", inputs=len(self.plan), tasks=len(tasks), resumed=len(receipts), workers=workers
        )
        self.progress.finish(sum(len(receipt.samples) + len(receipt.quarantined) for receipt in receipts))

    def _check_rates(self, receipts: list[Receipt]) -> None:
        """Clips of several rates in one field would be squashed silently; see as early as the second shard."""
        if self.job.recipe.sample_rate is not None:
            return
        example: dict[int, int] = {}
        for receipt in receipts:
            rates = receipt.columns.get("sample_rate")
            if isinstance(rates, np.ndarray):
                values, first = np.unique(rates, return_index=True)
                example = {**dict(zip(values.tolist(), receipt.samples[first].tolist())), **example}
        if len(example) > 1:
            found = ", ".join(f"{rate} Hz ({self.plan.keys[sample]})" for rate, sample in sorted(example.items())[:3])
            raise RecipeError(f"the clips have several sample rates: {found}; choose one, sample_rate (--sample-rate)")

    def _note(self, receipt: Receipt) -> None:
        for _, row in receipt.quarantined:
            self.progress.event("warning", "quarantined", task=receipt.task, sample=row.key, message=row.message)
        self._stop_on_error(receipt)
        self.progress.event("info", "shard finished", task=receipt.task, seconds=round(receipt.seconds, 3))
        self.progress.finish(len(receipt.samples) + len(receipt.quarantined))

    def _stop_on_error(self, receipt: Receipt) -> None:
        if receipt.quarantined and self.options.on_error == "stop":
            raise TooManyFailuresError(f"{receipt.quarantined[0][1]}; stopped by on_error=stop, nothing was committed")


def _expected_bytes(plan: Plan, probed: Probed) -> int:
    """From the probed inputs: their mean if all records are equal, else their mean growth times all input bytes."""
    if not probed.record_bytes:
        return 0
    if len(set(probed.record_bytes)) == 1:
        return probed.record_bytes[0] * len(plan)
    growth = sum(probed.record_bytes) / max(1, sum(probed.input_bytes))
    return int(growth * np.maximum(plan.stat[:, 0], 0).sum())


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"
