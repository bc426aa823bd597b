"""A hash of whole numbers, the same on every platform: randomness that is a function of numbers."""

from __future__ import annotations

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORD = 1 << 64


def random_words(count: int, *key: int) -> np.ndarray:
    """uint64 (count,), uniform, chosen by whole numbers of at least 0, of any size: SplitMix64 from a hashed state."""
    state = np.zeros(1, np.uint64)
    for number in key:
        while True:
            number, word = divmod(number, _WORD)
            is_last = number == 0  # so that (1, 0) and (2 ** 64,) are other keys
            state = mix((state ^ np.uint64(word)) + _GOLDEN) + np.uint64(is_last)
            if is_last:
                break
    return mix(state + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)


def mix(values: np.ndarray) -> np.ndarray:
    """uint64 -> uint64, a bijection in which every bit depends on every bit.

    The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
