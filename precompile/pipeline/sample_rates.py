"""Clips of several sample rates in one field would be squashed silently; they are refused."""

from __future__ import annotations

import numpy as np

from precompile.errors import RecipeError
from precompile.format.index import Column
from precompile.format.text import TextColumn


class SampleRates:
    """The rates seen so far in one build, each with an example."""

    def __init__(self, keys: TextColumn) -> None:
        """keys: of the inputs of the plan."""
        self._keys = keys
        self._example: dict[int, int] = {}

    def add(self, rates: Column | None, samples: np.ndarray) -> None:
        """rates: int64 (n,) in Hz, of the inputs `samples`. Raises RecipeError when there are several in all."""
        if not isinstance(rates, np.ndarray):
            return
        values, first = np.unique(rates, return_index=True)
        for rate, sample in zip(values.tolist(), samples[first].tolist()):
            self._example.setdefault(rate, sample)
        if len(self._example) > 1:
            found = ", ".join(f"{rate} Hz ({self._keys[sample]})" for rate, sample in sorted(self._example.items())[:3])
            raise RecipeError(f"the clips have several sample rates: {found}; choose one, sample_rate (--sample-rate)")
