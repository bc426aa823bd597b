"""Epochs over batches, as users read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from precompile import CompiledDataset, Loader
from precompile.loading.reading.collate import Padded
from reading.comparison import Run


def num_samples(batch: torch.Tensor | Padded) -> int:
    return len(batch.lengths if isinstance(batch, Padded) else batch)


def loader(dataset: CompiledDataset, batch_size: int, *, each: Callable[[], None] | None = None, **options: Any) -> Run:
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


def dataloader(dataset: CompiledDataset, batch_size: int) -> Run:
    """Shuffled epochs of torch's DataLoader without workers."""
    batches = DataLoader(dataset, batch_size, shuffle=True, drop_last=True, collate_fn=dataset.collate)

    @contextmanager
    def prepared(seed: int) -> Iterator[Callable[[], int]]:
        torch.manual_seed(seed)
        yield lambda: sum(num_samples(batch) for batch in batches)

    return prepared
