"""Batches by nothing but memory reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from precompile.format.stored import Stored
from precompile.loading.fillings.filling import FilledBy, Positions
from precompile.loading.reading.batch_reader import BatchReader, Job
from precompile.loading.reading.readahead import ReadAhead


class MemoryFilling:
    filled_by: ClassVar[FilledBy] = "threads"

    def __init__(self, stored: Stored, positions: Positions, reader: BatchReader) -> None:
        self._positions, self._reader = positions, reader
        self._read_ahead = ReadAhead(stored) if reader.reads_records else None

    def batches_per_call(self, batch_size: int, seconds_per_sample: float | None = None) -> int:
        return self._reader.batches_per_call(batch_size)

    def processes(self) -> list[tuple[str, int]]:
        return []

    def ask_for(self, soon: Callable[[], np.ndarray]) -> Callable[[], None] | None:
        if self._read_ahead is None:
            return None
        return self._read_ahead.plan(lambda: self._positions.numbers(soon()))

    def plan(self, positions: np.ndarray, sizes: list[int], epoch: int) -> Job:
        return self._reader.plan(self._positions.numbers(positions), sizes, epoch)
