"""Which samples to look at, when not all are."""

from __future__ import annotations

import numpy as np


def choose(shard: np.ndarray, label: np.ndarray | None, count: int | None) -> np.ndarray:
    """int64, ascending: `count` of n samples, spread over classes and shards, the same every time; None is all.

    Every class comes first, then every shard, then each class in turn. So `count` of at least the number of classes
    has them all, and of at least classes and shards together has all of both.
    shard, label: int64 (n,).
    """
    total = len(shard)
    if count is None or count >= total:
        return np.arange(total)
    mixed = np.random.default_rng(0).permutation(total)
    classes = np.zeros(total, np.int64) if label is None else np.unique(label[mixed], return_inverse=True)[1]
    shards = np.unique(shard[mixed], return_inverse=True)[1]
    in_both = _rank(classes * (shards.max() + 1) + shards, np.arange(total))
    in_class = _rank(classes, in_both)
    in_shard = _rank(shards, np.arange(total))
    first = np.lexsort((in_class, in_shard > 0, in_class > 0))[:count]
    return np.sort(mixed[first])


def _rank(group: np.ndarray, by: np.ndarray) -> np.ndarray:
    """int64 (n,): how many of its group come before each item, in the order of `by`."""
    order = np.lexsort((by, group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    return rank
