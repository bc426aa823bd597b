"""In which order samples are read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def epoch_order(count: int, *, shuffle: bool, seed: int, epoch: int) -> np.ndarray:
    """int64 (count,): 0 … count - 1, shuffled by (seed, epoch) or in order. The same on every platform."""
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(count)


def batches(order: np.ndarray, batch_size: int, *, drop_last: bool) -> Iterator[np.ndarray]:
    """Consecutive runs of `batch_size` sample numbers; the last may be shorter, or is dropped."""
    stop = len(order) // batch_size * batch_size if drop_last else len(order)
    for start in range(0, stop, batch_size):
        yield order[start : min(start + batch_size, stop)]
