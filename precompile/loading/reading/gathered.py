"""Samples that are read as one batch, for a stock DataLoader."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from precompile.format.stored import Stored
from precompile.loading.background import run_safely
from precompile.loading.reading.batch_reader import BatchReader


class GatheredSamples(list[Any]):
    """Samples that were read as one batch, with that batch, so that nothing has to be copied again.

    Copied or pickled it is a plain list.
    """

    def __init__(
        self,
        samples: Iterable[Any] = (),
        batch: Any = None,
        rows: Sequence[tuple[Sequence[torch.Tensor], torch.Tensor]] = (),
    ) -> None:
        """rows: of each array field the tensors of the samples, and the tensor whose rows they are."""
        super().__init__(samples)
        self._batch, self._rows = batch, rows
        self._seen = self._parts()

    def __reduce_ex__(self, protocol: Any) -> tuple[type, tuple[list[Any]]]:
        return list, (list(self),)

    def unchanged_batch(self) -> Any | None:
        """The batch, unless a sample, a part of one, or the form of a tensor is another since.

        Values that were written into tensors are in the batch.
        """
        parts = self._parts()
        if len(parts) != len(self._seen) or not all(map(operator.is_, parts, self._seen)):
            return None
        return self._batch if all(are_rows(*pair) for pair in self._rows) else None

    def _parts(self) -> list[Any]:
        if self and isinstance(self[0], dict):
            return [part for sample in self for item in sample.items() for part in item]
        return list(self)


def are_rows(tensors: Sequence[torch.Tensor], whole: torch.Tensor) -> bool:
    """Whether the tensors still look at the rows of the whole, in its form: some methods change a tensor's own."""
    start, step, kind = whole.data_ptr(), whole.stride(0) * whole.element_size(), torch.Tensor
    return (
        list(map(kind.data_ptr, tensors)) == list(range(start, start + step * len(tensors), step))
        and set(map(kind.stride, tensors)) == {whole.stride()[1:]}
        and set(map(kind.numel, tensors)) == {whole[0].numel()}
    )


class SampleGather:
    """Reads samples of fixed shape by one gather; they share the memory of their batch. Used by one thread."""

    def __init__(self, stored: Stored, names: Sequence[str], fields: str | Sequence[str] | None) -> None:
        self._reader = BatchReader(stored, names, dict)
        self._arrays = {name for name in names if not stored.schema[name].is_column}
        self._names, self._fields = names, fields

    def __call__(self, numbers: np.ndarray) -> GatheredSamples:
        """int64 (n,) sample numbers, n ≥ 1 -> the samples, with numbers of columns as Python numbers."""
        job = self._reader.plan(numbers, [len(numbers)])
        run_safely(job.fill)
        (read,) = job.batches()
        values = {name: read[name] for name in self._names}
        parts = [self._one_by_one(name, value) for name, value in values.items()]
        rows = [(part, values[name]) for name, part in zip(values, parts) if name in self._arrays]
        if isinstance(self._fields, str):
            return GatheredSamples(parts[0], values[self._fields], rows)
        samples = list(zip(*parts))
        if self._fields is None:
            return GatheredSamples([dict(zip(values, sample)) for sample in samples], values, rows)
        return GatheredSamples(samples, tuple(values.values()), rows)

    def _one_by_one(self, name: str, value: Any) -> Sequence[Any]:
        if not isinstance(value, torch.Tensor):
            return value  # type: ignore[no-any-return]
        return value.unbind(0) if name in self._arrays else value.tolist()
