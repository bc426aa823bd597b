"""From a small sample to the whole, with a range."""

from __future__ import annotations

import math

import numpy as np

from precompile.pipeline.options import Range

SAMPLED = 64
_STANDARD_ERRORS = 3
_RARE = 3
"""What happens to none of k inputs may yet happen to 3 in k of all (the rule of three)."""


def spread(count: int) -> np.ndarray:
    """int64, ascending: at most SAMPLED of `count` places, one at random from each of equal runs, always the same."""
    edges = np.linspace(0, count, min(SAMPLED, count) + 1).round().astype(np.int64)
    within = np.random.default_rng(0).random(len(edges) - 1) * np.diff(edges)
    return edges[:-1] + within.astype(np.int64)


def extrapolate(values: np.ndarray, sizes: np.ndarray, count: int, total_size: float, *, at_stake: float) -> Range:
    """The total of `count` values, of which some are known, in proportion to number or size.

    Of the two, it is the one that explains the sample better.
    values, sizes: (k,), of the sample. total_size: of all. at_stake: by how much one value may be another if it comes
    to something that no input of the sample shows.
    """
    if not count or not len(values):
        return Range(0.0, 0.0, 0.0)
    unseen = 1 - len(values) / count
    found = []
    for weights, whole in ((np.ones(len(values)), float(count)), (sizes.astype(np.float64), total_size)):
        if weights.any():
            each = float(values.sum() / weights.sum())
            deviation = math.sqrt(float(((values - each * weights) ** 2).sum()) / max(1, len(values) - 1))
            error = _STANDARD_ERRORS * deviation * count * math.sqrt(unseen / len(values))
            error += min(1.0, _RARE / len(values)) * at_stake * count * unseen
            found.append(Range(max(0.0, each * whole - error), each * whole, each * whole + error))
    return min(found, key=lambda range_: range_.high - range_.low)


def add(ranges: list[Range]) -> Range:
    """As if all were low, or all high."""
    return Range(*(sum(getattr(each, name) for each in ranges) for name in ("low", "expected", "high")))
