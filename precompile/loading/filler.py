"""Groups of batches: which buffers, which places, which columns; planned by the consumer, filled in the background."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from precompile.format.text import TextColumn
from precompile.loading.buffers import BufferPool
from precompile.loading.dataset import CompiledDataset
from precompile.loading.gather import FixedGather, gather_padded

_CALL_BYTES = 2 << 20
"""Several small batches are gathered by one call of about this size, since each call takes the GIL once."""


@dataclass(slots=True)
class Group:
    """Some batches in one piece: what to run in the background, and how to cut the result."""

    positions: np.ndarray
    fill: Callable[[], None]
    batch: Callable[[int, int], Any]


class Filler:
    """Plans groups of batches: which buffers, which places, which columns. Used by the consumer's thread."""

    def __init__(self, dataset: CompiledDataset, batch_size: int) -> None:
        self._dataset = dataset
        stored = dataset.stored
        specs = [dataset.schema[name] for name in dataset.field_names]
        self._columns = [spec.name for spec in specs if spec.is_column]
        arrays = [spec for spec in specs if not spec.is_column]
        self._varying = () if stored.schema.is_fixed else tuple(arrays)
        self._fixed = {spec.name: FixedGather(stored, spec) for spec in arrays if stored.schema.is_fixed}
        self.batches_per_call = 1
        if self._fixed and dataset.transform is None:
            batch_bytes = batch_size * sum(gather.row_bytes for gather in self._fixed.values())
            self.batches_per_call = max(1, min(16, _CALL_BYTES // batch_bytes))
        rows = batch_size * self.batches_per_call
        self._pools = {name: BufferPool(rows * gather.row_bytes) for name, gather in self._fixed.items()}

    def plan(self, positions: np.ndarray) -> Group:
        if self._dataset.transform is not None:
            return self._plan_samples(positions)
        numbers = positions + self._dataset.sample_number(0)
        columns = {name: self._take(name, numbers) for name in self._columns}
        return self._plan_padded(numbers, columns) if self._varying else self._plan_fixed(numbers, columns)

    def _plan_fixed(self, numbers: np.ndarray, columns: dict[str, Any]) -> Group:
        places = self._dataset.stored.places(numbers)
        buffers = {name: pool.take() for name, pool in self._pools.items()}

        def fill() -> None:
            for name, gather in self._fixed.items():
                gather.fill(places, buffers[name])

        def batch(start: int, stop: int) -> Any:
            arrays = {name: gather.batch(buffers[name], start, stop) for name, gather in self._fixed.items()}
            return self._dataset.arrange({**arrays, **{name: values[start:stop] for name, values in columns.items()}})

        return Group(numbers, fill, batch)

    def _plan_padded(self, numbers: np.ndarray, columns: dict[str, Any]) -> Group:
        values: dict[str, Any] = dict(columns)

        def fill() -> None:
            for spec in self._varying:
                values[spec.name] = gather_padded(self._dataset.stored, spec, numbers.tolist())

        return Group(numbers, fill, lambda start, stop: self._dataset.arrange(values))

    def _plan_samples(self, positions: np.ndarray) -> Group:
        made: list[Any] = []

        def fill() -> None:
            made.append(self._dataset.collate(self._dataset.__getitems__(positions.tolist())))

        return Group(positions, fill, lambda start, stop: made[-1])

    def _take(self, name: str, numbers: np.ndarray) -> Any:
        column = self._dataset.stored.index.columns[name]
        if isinstance(column, TextColumn):
            return list(column.take(numbers))
        return torch.from_numpy(column[numbers])
