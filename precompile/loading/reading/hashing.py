"""A hash of whole numbers, the same on every platform: randomness that is a function of a number."""

from __future__ import annotations

import numpy as np


def mix(values: np.ndarray) -> np.ndarray:
    """uint64 -> uint64, a bijection in which every bit depends on every bit.

    The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
