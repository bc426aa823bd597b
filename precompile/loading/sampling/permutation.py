"""A shuffle of n numbers that is a function: no memory per sample, any part of it at any time."""

from __future__ import annotations

import numpy as np

from precompile.loading.reading.hashing import random_words

SMALL = 1 << 15
"""Up to here the whole permutation is held, which is faster to read; a larger one would hold up the first batch."""
_ROUNDS = 6
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_HALF_WORD = np.uint64(32)


def random_below(count: int, *key: int) -> int:
    """One number from 0 to count - 1, chosen by whole numbers of at least 0."""
    return int(random_words(1, *key)[0]) % count


class Permutation:
    """A bijection of 0 … count - 1, chosen by whole numbers of at least 0; immutable.

    The same on every platform and with every version of numpy, whose Generator may change.

    Large ones are a Feistel network of _ROUNDS rounds over pairs (high, low), whose few values beyond `count` are sent
    through it again until they fall below ("cycle walking"; Black and Rogaway, Ciphers with Arbitrary Finite Domains,
    CT-RSA 2002).
    """

    def __init__(self, count: int, *key: int) -> None:
        self.count = count
        self._all = _shuffled(count, key) if count <= SMALL else None
        low_bits = max(2, (count - 1).bit_length()) // 2
        self._low_bits = np.uint64(low_bits)
        self._low_mask = np.uint64((1 << low_bits) - 1)
        self._num_high = np.uint64(-(-count >> low_bits))
        self._keys = random_words(_ROUNDS, *key)

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """int64 (n,) places from 0 to count - 1 -> int64 (n,) the numbers there."""
        if self._all is not None:
            numbers: np.ndarray = self._all[places]
            return numbers.astype(np.int64)
        values = self._round_trip(places.astype(np.uint64))
        while (beyond := np.flatnonzero(values >= self.count)).size:
            values[beyond] = self._round_trip(values[beyond])
        return values.astype(np.int64)

    def _round_trip(self, values: np.ndarray) -> np.ndarray:
        high, low = values >> self._low_bits, values & self._low_mask
        for number, key in enumerate(self._keys):
            if number % 2:
                low ^= _mixed(high, key) & self._low_mask
            else:
                high += _mixed(low, key) * self._num_high >> _HALF_WORD
                np.minimum(high, high - self._num_high, out=high)  # modulo: what is below zero wraps round to the top
        high <<= self._low_bits
        high |= low
        return high


def _mixed(half: np.ndarray, key: np.uint64) -> np.ndarray:
    """32 bits, each of which depends on all bits of `half` and of the key."""
    mixed = half + key
    mixed *= _MULTIPLIERS[0]
    mixed ^= mixed >> _HALF_WORD
    mixed *= _MULTIPLIERS[1]
    mixed >>= _HALF_WORD
    return mixed


def _shuffled(count: int, key: tuple[int, ...]) -> np.ndarray:
    """int32 (count,): 0 … count - 1 in random order."""
    low_bits = np.uint64((1 << count.bit_length()) - 1)
    # The number is the low end of its random key, so keys differ, and any sort gives the same order.
    keys = random_words(count, *key) & ~low_bits | np.arange(count, dtype=np.uint64)
    keys.sort()
    return (keys & low_bits).astype(np.int32)
