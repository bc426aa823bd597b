"""An executor that notes what it does, with limits that a test chooses."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from poison import running_children

from precompile.pipeline.compile_shard import Job, Task
from precompile.pipeline.executors.local import LocalExecutor
from precompile.pipeline.executors.worker import Probed
from precompile.pipeline.journal import Receipt
from precompile.pipeline.layout import BuildDirs


@dataclass
class Watch:
    """What the executor of a build did."""

    alone: list[int] = field(default_factory=list)
    """Tasks it began alone, in order."""
    alone_ns: list[int] = field(default_factory=list)
    """When it began them, time.monotonic_ns()."""
    others: int = 0
    """Worker processes that ran when it did."""
    finished: list[int] = field(default_factory=list)
    """Tasks whose receipts it gave, in order."""
    unfinished: list[int] = field(default_factory=list)
    """Half written shards when it gave them."""
    heartbeats: list[tuple[int, int]] = field(default_factory=list)
    """Heartbeat files before and after it was left."""

    def begin_alone(self, task: Task) -> None:
        self.alone.append(task.number)
        self.alone_ns.append(time.monotonic_ns())
        self.others += len(running_children())


def watched(seen: Watch, alone: Collection[int], *, probes: bool, limits: dict[str, Any]) -> type[LocalExecutor]:
    """A class of executors that write into `seen`. Unless they probe, each file is first met in its task."""

    class Watched(LocalExecutor):
        def __init__(self, job: Job, directory: Path, **options: Any) -> None:
            self._heartbeats, self._unfinished = directory, BuildDirs(job.root).unfinished
            options |= {"limits": replace(options["limits"], **limits), "on_alone": seen.begin_alone}
            super().__init__(job, directory, **options)

        def __exit__(self, *exception: object) -> None:
            before = self._count_heartbeats()
            super().__exit__(*exception)
            seen.heartbeats.append((before, self._count_heartbeats()))

        def _count_heartbeats(self) -> int:
            return len(list(self._heartbeats.glob("*.heartbeat")))

        def probe(self, samples: tuple[int, ...]) -> Probed:
            return super().probe(samples) if probes else Probed((1200,), (1000,), 0.1)

        def run(self, tasks: list[Task], **_: object) -> Iterator[Receipt]:
            for receipt in super().run(tasks, alone=frozenset(alone)):
                seen.finished.append(receipt.task)
                seen.unfinished.append(len(list(self._unfinished.iterdir())))
                yield receipt

    return Watched
