"""The waveform itself, as float32 or int16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from precompile.format.schema import FieldSpec
from precompile.pipeline.features._parameters import check_choice, check_names, parameter
from precompile.pipeline.recipe import Recipe

DTYPES = ("float32", "int16")


@dataclass(frozen=True, slots=True)
class Waveform:
    """float32 as decoded, or int16 = round(x * 32768) limited to [-32768, 32767], which is exact for 16-bit files."""

    dtype: str = parameter("float32", "float32, or int16: round(x * 32768); default: the key dtype")
    num_channels: int | None = 1
    """1, or None when all channels of each file are kept."""

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, DTYPES)

    def spec(self) -> FieldSpec:
        """(channels, samples); int16 is divided by 32768 to give the unit."""
        return FieldSpec("waveform", self.dtype, (self.num_channels, None), unit="full scale [-1, 1]")

    def load(self) -> None:
        """Nothing more is needed."""

    def __call__(self, waveform: np.ndarray, sample_rate: int) -> np.ndarray:
        """(channels, samples) of the stored dtype, contiguous."""
        if self.dtype == "int16":
            # float32 holds x * 32768 exactly, so this rounds once.
            waveform = np.clip(np.rint(waveform * np.float32(32768)), -32768, 32767).astype(np.int16)
        return np.ascontiguousarray(waveform)


def make(recipe: Recipe, parameters: Mapping[str, Any]) -> Waveform:
    """Parameter: dtype. Raises RecipeError for another one, or a wrong value."""
    check_names("waveform", parameters, ("dtype",))
    dtype = parameters.get("dtype", recipe.dtype if recipe.dtype in DTYPES else "float32")
    return Waveform(dtype, None if recipe.channels == "keep" else 1)
