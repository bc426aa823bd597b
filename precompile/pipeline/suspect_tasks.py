"""Which tasks hold inputs that are suspected of having killed an earlier build."""

from __future__ import annotations

import numpy as np

from precompile.pipeline.compile_shard import Task
from precompile.pipeline.suspects import Suspects
from precompile.pipeline.work import Work


class SuspectTasks:
    """The suspects of an output, by their number in the plan of this build."""

    def __init__(self, work: Work, suspects: Suspects) -> None:
        self._work, self._suspects = work, suspects
        plan = work.plan
        wanted = set(suspects.keys())
        numbers = [n for n, key in enumerate(plan.keys) if key in wanted] if wanted else []
        found = {n: suspects.find(plan.keys[n], tuple(plan.stat[n].tolist())) for n in numbers}
        self._by_number = {number: suspect for number, suspect in found.items() if suspect is not None}

    def task(self, number: int, start: int, stop: int) -> Task:
        """A task that leaves the guilty out."""
        guilty = {n: suspect.failure() for n, suspect in self._by_number.items() if suspect.is_guilty}
        inside = set(self._work.order[start:stop].tolist()) & set(guilty) if guilty else set()
        return Task(number, start, stop, {n: guilty[n] for n in sorted(inside)})

    def harmless(self, inputs: np.ndarray) -> np.ndarray:
        """Without the guilty; all of them, if that leaves none."""
        guilty = [number for number, suspect in self._by_number.items() if suspect.is_guilty]
        kept = inputs[~np.isin(inputs, guilty)]
        return kept if len(kept) else inputs[:0]

    def suspects_in(self, task: Task) -> list[str]:
        if not self._by_number:
            return []
        inputs = self._work.order[task.start : task.stop].tolist()
        return [self._by_number[n].key for n in inputs if n in self._by_number and not self._by_number[n].is_guilty]

    def begin_alone(self, task: Task) -> None:
        keys = self.suspects_in(task)
        if keys:
            self._suspects.begin_alone(keys)

    def end_alone(self, task: Task) -> None:
        keys = self.suspects_in(task)
        if keys:
            self._suspects.acquit(keys)

    def begin_probing(self, inputs: np.ndarray) -> None:
        """Probes are compiled one at a time, with nothing else in work."""
        keys = [self._by_number[n].key for n in inputs.tolist() if n in self._by_number]
        if keys:
            self._suspects.begin_alone(keys)

    def end_probing(self, inputs: np.ndarray) -> None:
        """They stay suspects until their task is done, but what kills a worker from now on need not be they."""
        keys = [self._by_number[n].key for n in inputs.tolist() if n in self._by_number]
        if keys:
            self._suspects.end_alone(keys)
