"""Sorting of whole numbers with their places."""

from __future__ import annotations

import numpy as np


def stable_argsort(values: np.ndarray) -> np.ndarray:
    """int64 (n,) of at least 0 -> int64 (n,), as np.argsort(values, kind="stable"), several times as fast."""
    bits = len(values).bit_length()
    if not len(values) or int(values.max()) >> (63 - bits):
        return np.argsort(values, kind="stable")
    # Places in the low bits make keys differ, so that any sort is stable, and numpy's fastest sorts keys alone.
    keys = values << bits
    keys |= np.arange(len(values))
    keys.sort()
    keys &= (1 << bits) - 1
    return keys
