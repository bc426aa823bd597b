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

    def __init__(self, samples: Iterable[Any] = (), batch: Any = None) -> None:
        super().__init__(samples)
        self._batch = batch
        self._seen = self._parts()

    def __reduce_ex__(self, protocol: Any) -> tuple[type, tuple[list[Any]]]:
        return list, (list(self),)

    def unchanged_batch(self) -> Any | None:
        """The batch, unless a sample or a part of one was put in the place of another since."""
        parts = self._parts()
        is_unchanged = len(parts) == len(self._seen) and all(map(operator.is_, parts, self._seen))
        return self._batch if is_unchanged else None

    def _parts(self) -> list[Any]:
        if self and isinstance(self[0], dict):
            return [part for sample in self for part in sample.values()]
        return list(self)


class SampleGather:
    """Reads samples of fixed shape by one gather; they share the memory of their batch. Used by one thread."""

    def __init__(self, stored: Stored, names: Sequence[str], fields: str | Sequence[str] | None) -> None:
        self._reader = BatchReader(stored, names, dict)
        self._columns = {name for name in names if stored.schema[name].is_column}
        self._names, self._fields = names, fields

    def __call__(self, numbers: np.ndarray) -> GatheredSamples:
        """int64 (n,) sample numbers, n ≥ 1 -> the samples, with numbers of columns as Python numbers."""
        job = self._reader.plan(numbers, [len(numbers)])
        run_safely(job.fill)
        (read,) = job.batches()
        values = {name: read[name] for name in self._names}
        parts = [self._one_by_one(name, value) for name, value in values.items()]
        if isinstance(self._fields, str):
            return GatheredSamples(parts[0], values[self._fields])
        samples = list(zip(*parts))
        if self._fields is None:
            return GatheredSamples([dict(zip(values, sample)) for sample in samples], values)
        return GatheredSamples(samples, tuple(values.values()))

    def _one_by_one(self, name: str, value: Any) -> Sequence[Any]:
        if not isinstance(value, torch.Tensor):
            return value  # type: ignore[no-any-return]
        return value.tolist() if name in self._columns else value.unbind(0)
