"""Epochs over batches, as users read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from precompile import CompiledDataset, Loader, watch
from precompile.loading.reading.collate import Padded
from reading.comparison import Run


def num_samples(batch: torch.Tensor | Padded) -> int:
    return len(batch.lengths if isinstance(batch, Padded) else batch)


def loader(
    dataset: CompiledDataset | Subset[Any], batch_size: int, *, each: Callable[[], None] | None = None, **options: Any
) -> Run:
    """Shuffled epochs of a Loader. each: what the consumer does with a batch."""
    batches = Loader(dataset, batch_size, shuffle=True, drop_last=True, **options)

    def epoch() -> int:
        samples = 0
        for batch in batches:
            samples += num_samples(batch)
            if each is not None:
                each()
        return samples

    @contextmanager
    def prepared(seed: int) -> Iterator[Callable[[], int]]:
        batches.set_epoch(seed)
        yield epoch

    return prepared


def repeated(dataset: CompiledDataset, times: int) -> Subset[Any]:
    """All samples several times: a longer epoch, so that what one costs at its ends does not count."""
    return Subset(dataset, list(range(len(dataset))) * times)


def watched(dataset: Subset[Any], batch_size: int, *, is_watched: bool) -> Run:
    """Shuffled epochs of a Loader, with `watch` around it or not."""
    batches = Loader(dataset, batch_size, shuffle=True, drop_last=True)

    @contextmanager
    def prepared(seed: int) -> Iterator[Callable[[], int]]:
        batches.set_epoch(seed)
        yield lambda: sum(num_samples(batch) for batch in (watch(batches) if is_watched else batches))

    return prepared


def with_identity(dataset: CompiledDataset) -> CompiledDataset:
    """The same samples, each through a Python function."""
    return CompiledDataset(dataset.root, fields=dataset.fields, transform=_identity)


def _identity(sample: torch.Tensor) -> torch.Tensor:
    return sample


def dataloader(dataset: CompiledDataset | Subset[Any], batch_size: int, **options: Any) -> Run:
    """Shuffled epochs of torch's DataLoader."""
    batches = DataLoader(dataset, batch_size, shuffle=True, drop_last=True, **options)

    @contextmanager
    def prepared(seed: int) -> Iterator[Callable[[], int]]:
        torch.manual_seed(seed)
        yield lambda: sum(num_samples(batch) for batch in batches)

    return prepared
