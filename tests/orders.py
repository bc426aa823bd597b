"""What a Loader without a sampler is expected to read, and in which batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from precompile.loading.sampling.samplers import ShuffleSampler


def epoch_order(count: int, *, shuffle: bool, seed: int, epoch: int) -> np.ndarray:
    """int64 (count,)."""
    sampler = ShuffleSampler(count, shuffle=shuffle, seed=seed, rank=0, world_size=1)
    sampler.set_epoch(epoch)
    return np.array(list(sampler))


def batches(order: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
