"""Batches of samples, planned: which buffers, which places, which columns. Filled later, by any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from precompile.format.schema import FieldSpec
from precompile.format.stored import Stored
from precompile.format.text import TextColumn
from precompile.loading.reading.box_reader import BoxReader
from precompile.loading.reading.buffers import BufferPool
from precompile.loading.reading.collate import Pad
from precompile.loading.reading.readers import FieldReader, MakeBuffers, Plan, SampleReader, StackedReader
from precompile.loading.reading.windows import Window

_CALL_BYTES = 4 << 20
"""Several small batches are gathered by one call of about this size, since each call waits for the GIL once."""
_MAX_BATCHES = 16


@dataclass(slots=True)
class Job:
    """Some batches in one piece."""

    fill: Callable[[], object]
    """Copies; for any thread, once."""
    batches: Callable[[], Iterable[Any]]
    """The batches, after `fill`; each when it is used."""
    sizes: list[int]
    """Samples in each batch."""

    def after(self, first: Callable[[], None] | None) -> Job:
        """This job, with something to be done before `fill`."""
        if first is None:
            return self
        fill = self.fill

        def both() -> None:
            first()
            fill()

        return Job(both, self.batches, self.sizes)


@dataclass(frozen=True, slots=True)
class Reading:
    """How fields are read, beyond what is stored."""

    windows: Mapping[str, Window]
    """By field."""
    pad: Pad = field(default_factory=Pad)
    seed: int = 0
    """Of the windows."""


class BatchReader:
    """Plans batches of a stored generation. Used by one thread at a time; buffers are reused when nobody holds them.

    arrange: values by field name -> the form of a batch.
    """

    def __init__(
        self,
        stored: Stored,
        names: Sequence[str],
        arrange: Callable[[Mapping[str, Any]], Any],
        *,
        reading: Reading | None = None,
        make_buffers: MakeBuffers = BufferPool,
    ) -> None:
        self._stored = stored
        self._arrange = arrange
        self._reading = reading or Reading({})
        specs = [stored.schema[name] for name in names]
        self._columns = [spec.name for spec in specs if spec.is_column]
        self._readers = {spec.name: self._reader(spec, make_buffers) for spec in specs if not spec.is_column}

    @property
    def reads_records(self) -> bool:
        """Whether anything but columns is read."""
        return bool(self._readers)

    def batches_per_call(self, batch_size: int) -> int:
        """How many batches of this size are best planned at once."""
        sizes = [reader.sample_bytes for reader in self._readers.values()]
        batch_bytes = batch_size * sum(size or _CALL_BYTES for size in sizes)
        return max(1, min(_MAX_BATCHES, _CALL_BYTES // max(batch_bytes, 1)))

    def plan(self, numbers: np.ndarray, sizes: list[int], epoch: int = 0) -> Job:
        """Some batches in one piece: int64 sample numbers, and how many of each batch.

        Several batches at once only where `batches_per_call` says so.
        """
        located = self._stored.fields(numbers) if self._readers else {}
        plans = {name: reader.plan(located[name], numbers, epoch) for name, reader in self._readers.items()}
        columns = {name: self._take(name, numbers, sizes) for name in self._columns}

        fills = [plan.fill for plan in plans.values()]
        return Job(
            fills[0] if len(fills) == 1 else lambda: [fill() for fill in fills],
            lambda: self._cut(plans, columns, sizes),
            sizes,
        )

    def _reader(self, spec: FieldSpec, make_buffers: MakeBuffers) -> FieldReader:
        window = self._reading.windows.get(spec.name)
        if window is None and spec.is_fixed:
            return StackedReader(self._stored, spec, make_buffers)
        if window is None and spec.encoding == "bmp":
            return SampleReader(self._stored, spec)
        return BoxReader(
            self._stored, spec, make_buffers, window=window, pad=self._reading.pad, seed=self._reading.seed
        )

    def _cut(self, plans: Mapping[str, Plan], columns: Mapping[str, Sequence[Any]], sizes: list[int]) -> list[Any]:
        parts = {**{name: plan.split(sizes) for name, plan in plans.items()}, **columns}
        return [self._arrange({name: part[number] for name, part in parts.items()}) for number in range(len(sizes))]

    def _take(self, name: str, numbers: np.ndarray, sizes: list[int]) -> Sequence[Any]:
        column = self._stored.index.columns[name]
        if isinstance(column, TextColumn):
            stops = np.cumsum(sizes).tolist()
            return [list(column.take(numbers[stop - size : stop])) for size, stop in zip(sizes, stops)]
        values = torch.from_numpy(column.take(numbers))
        return values.split_with_sizes(sizes)
