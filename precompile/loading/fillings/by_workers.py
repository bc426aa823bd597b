"""Batches that worker processes make."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from precompile.loading.fillings.filling import FilledBy, Filling
from precompile.loading.reading.batch_reader import Job
from precompile.loading.workers.team import Team


class WorkerFilling:
    """What `plan` asks for, a worker begins at once. The workers ask the disk themselves."""

    filled_by: ClassVar[FilledBy] = "itself"

    def __init__(self, team: Team, filling: Filling) -> None:
        """filling: as the one that the workers have."""
        self._team, self._filling = team, filling

    def batches_per_call(self, batch_size: int, seconds_per_sample: float | None = None) -> int:
        return self._filling.batches_per_call(batch_size, self._team.seconds_per_sample)

    def processes(self) -> list[tuple[str, int]]:
        return [(worker.name, worker.pid) for worker in self._team.workers().known]

    def ask_for(self, soon: Callable[[], np.ndarray]) -> None:
        return None

    def plan(self, positions: np.ndarray, sizes: list[int], epoch: int) -> Job:
        ticket = self._team.submit(positions, sizes, epoch)
        return Job(ticket.wait, ticket.batches, sizes)
