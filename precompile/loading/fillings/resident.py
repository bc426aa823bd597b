"""Batches of a dataset that is on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from precompile.loading.fillings.filling import FilledBy, from_the_front
from precompile.loading.reading.batch_reader import Job

if TYPE_CHECKING:
    from precompile.loading.devices.resident import ResidentDataset


class ResidentFilling:
    """Gathered there when they are asked for."""

    filled_by: ClassVar[FilledBy] = "nobody"

    def __init__(self, dataset: ResidentDataset) -> None:
        self._dataset = dataset

    def batches_per_call(self, batch_size: int, seconds_per_sample: float | None = None) -> int:
        return 1

    def processes(self) -> list[tuple[str, int]]:
        return []

    def ask_for(self, soon: Callable[[], np.ndarray]) -> None:
        return None

    def plan(self, positions: np.ndarray, sizes: list[int], epoch: int) -> Job:
        positions = from_the_front(positions, len(self._dataset))
        return Job(lambda: None, lambda: [self._dataset.batch(positions)], sizes)
