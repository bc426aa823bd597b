"""Tasks in this process, one after another: for tests of what is built, not of how processes are ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from precompile.pipeline.compile_sample import make_compiler
from precompile.pipeline.compile_shard import Job, ShardCompiler, Task
from precompile.pipeline.executors.limits import Limits
from precompile.pipeline.executors.worker import Probed
from precompile.pipeline.journal import Receipt


class _NoHeartbeat:
    def begin(self, sample: int) -> None: ...

    def loaded(self, xxh3: int) -> None: ...

    def end(self) -> None: ...


class InlineExecutor:
    """See LocalExecutor."""

    def __init__(
        self, job: Job, directory: Path, *, workers: int, limits: Limits,
        on_progress: Callable[[int], None], on_alone: Callable[[Task], None] = lambda task: None,
    ) -> None:  # fmt: skip
        self._job, self._limits, self._on_alone = job, limits, on_alone

    def __enter__(self) -> InlineExecutor:
        self._shards = ShardCompiler(self._job, make_compiler(self._job.recipe, self._job.media), _NoHeartbeat())
        return self

    def __exit__(self, *exception: object) -> None: ...

    def probe(self, samples: tuple[int, ...]) -> Probed:
        self._limits.check_deadline()
        began = time.monotonic()
        sizes = [size for sample in samples if (size := self._shards.measure(sample)) is not None]
        return Probed(tuple(s[0] for s in sizes), tuple(s[1] for s in sizes), time.monotonic() - began)

    def run(self, tasks: list[Task], *, alone: frozenset[int] = frozenset()) -> Iterator[Receipt]:
        for task in sorted(tasks, key=lambda task: task.number in alone):
            self._limits.check_deadline()
            if task.number in alone:
                self._on_alone(task)
            yield self._shards.finish(self._shards.compile(task))


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds of this test compile in this process."""
    monkeypatch.setattr("precompile.pipeline.compile_plan.LocalExecutor", InlineExecutor)
    monkeypatch.setattr("precompile.pipeline.forecast.LocalExecutor", InlineExecutor)
