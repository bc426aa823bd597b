"""Batches of samples that go through Python one by one: the dataset's `transform`, or a collate function."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from precompile.loading.dataset import CompiledDataset
from precompile.loading.fillings.filling import FilledBy, Positions
from precompile.loading.processes import activity
from precompile.loading.reading.batch_reader import BatchReader, Job
from precompile.loading.reading.buffers import BufferPool, Memory
from precompile.loading.reading.gathered import are_rows
from precompile.loading.reading.readahead import ReadAhead

_CALL_SECONDS = 0.004
"""Batches that take less are made several at a time."""
BeginBatch = Callable[[int, int], None]
"""Called with the epoch and the number of the first sample before a batch goes through Python."""


def do_nothing(epoch: int, first: int) -> None:
    """A BeginBatch."""


class SampleFilling:
    """Samples as the dataset gives them, and a function that makes a batch of a list of them."""

    filled_by: ClassVar[FilledBy] = "threads"

    def __init__(
        self,
        dataset: CompiledDataset,
        positions: Positions,
        collate: Callable[[list[Any]], Any],
        *,
        begin_batch: BeginBatch = do_nothing,
    ) -> None:
        self._dataset, self._positions, self._collate, self._begin_batch = dataset, positions, collate, begin_batch
        self._read_ahead = ReadAhead(dataset.stored)

    def batches_per_call(self, batch_size: int, seconds_per_sample: float | None = None) -> int:
        return 1

    def processes(self) -> list[tuple[str, int]]:
        return []

    def ask_for(self, soon: Callable[[], np.ndarray]) -> Callable[[], None] | None:
        return self._read_ahead.plan(lambda: self._positions.numbers(soon()))

    def plan(self, positions: np.ndarray, sizes: list[int], epoch: int) -> Job:
        assert len(sizes) == 1
        numbers = self._positions.numbers(positions)
        indices = (numbers - self._dataset.sample_number(0)).tolist()
        made: list[Any] = []

        def fill() -> None:
            self._begin_batch(epoch, int(numbers[0]))
            made.append(self._collate(self._dataset.__getitems__(indices)))

        return Job(fill, lambda: made, sizes)


class TransformFilling:
    """Samples of one shape: gathered at once, then transformed one by one.

    A transform gets a row of the batch. What it changes in place, or gives back as it is, is in the batch already;
    anything else is collated, field by field.
    """

    filled_by: ClassVar[FilledBy] = "threads"

    def __init__(
        self,
        dataset: CompiledDataset,
        positions: Positions,
        memory: Memory,
        *,
        begin_batch: BeginBatch = do_nothing,
    ) -> None:
        assert dataset.is_gathered
        self._dataset, self._positions, self._memory, self._begin_batch = dataset, positions, memory, begin_batch
        self._read_ahead = ReadAhead(dataset.stored)
        self._in_place = BatchReader(dataset.stored, dataset.field_names, dict, make_buffers=memory.buffers)
        self._apart = BatchReader(dataset.stored, dataset.field_names, dict, make_buffers=BufferPool)
        self._is_in_place = True
        """Whether all transforms so far gave back the arrays that they were given."""

    def batches_per_call(self, batch_size: int, seconds_per_sample: float | None = None) -> int:
        if not seconds_per_sample:
            return 1
        of_time = int(_CALL_SECONDS / (seconds_per_sample * batch_size))
        return max(1, min(of_time, self._apart.batches_per_call(batch_size)))

    def processes(self) -> list[tuple[str, int]]:
        return []

    def ask_for(self, soon: Callable[[], np.ndarray]) -> Callable[[], None] | None:
        return self._read_ahead.plan(lambda: self._positions.numbers(soon()))

    def plan(self, positions: np.ndarray, sizes: list[int], epoch: int) -> Job:
        numbers = self._positions.numbers(positions)
        reader = self._in_place if self._is_in_place else self._apart
        job = reader.plan(numbers, sizes, epoch)
        made: list[Any] = []
        failed: list[Exception] = []

        def fill() -> None:
            job.fill()
            stops = list(itertools.accumulate(sizes))
            try:
                for start, stop, read in zip([0, *stops], stops, job.batches()):
                    self._begin_batch(epoch, int(numbers[start]))
                    made.append(self._transformed(numbers[start:stop].tolist(), read))
            except Exception as error:
                if not made:
                    raise
                failed.append(error)

        def batches() -> Iterator[Any]:
            """Those before the one that failed are given before that is said."""
            yield from made
            if failed:
                raise failed.pop()

        return Job(fill, batches, sizes)

    def _transformed(self, numbers: list[int], batch: dict[str, Any]) -> Any:
        """What was read of some samples, by field -> their batch."""
        dataset = self._dataset
        for name, transform in dataset.transforms.items():
            rows = _rows(batch[name])
            results = self._apply(transform, numbers, rows)
            if not dataset.schema[name].is_column:
                if all(map(operator.is_, results, rows)) and are_rows(results, batch[name]):
                    continue
                self._is_in_place = False
            batch[name] = self._collated(name, numbers, results)
        return dataset.arrange(batch)

    def _collated(self, name: str, numbers: list[int], results: list[Any]) -> Any:
        for number, result in zip(numbers, results):
            if result is None:
                raise TypeError(f"the transform of field {name} returned None; does it lack a `return`? "
                                f"{self._dataset.describe(number)}")  # fmt: skip
        try:
            return self._dataset.collate_field(name, results, self._memory.array)
        except Exception as error:
            error.add_note(f"These samples came from the transform of field {name} of {self._dataset.root}")
            raise

    def _apply(self, transform: Callable[[Any], Any], numbers: list[int], rows: Iterable[Any]) -> list[Any]:
        page = activity.page
        results: list[Any] = []
        try:
            if page is not None:
                page.dataset(str(self._dataset.root), self._dataset.manifest.generation)
                rows = page.each(numbers, rows)
            results.extend(map(transform, rows))
            if len(results) < len(numbers):  # `extend` takes a StopIteration for the end
                raise RuntimeError("the transform raised StopIteration")
        except Exception as error:
            error.add_note(self._dataset.describe(numbers[len(results)]))
            raise
        return results


def _rows(values: Any) -> Sequence[Any]:
    """A field of a batch -> the values of the samples: tensors of rows, Python numbers, or text."""
    if not isinstance(values, torch.Tensor):
        return values  # type: ignore[no-any-return]
    return values.unbind(0) if values.ndim > 1 else values.tolist()
