"""The pixels that all peers store: made once for a run, as one .npy file; and that file as a source of precompile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from precompile.format.bmp import pack
from precompile.pipeline.sample import RawSample


def make_rows(path: Path, *, count: int, side: int, seed: int = 0) -> None:
    """uint8 (count, 3, side, side): smooth colour and some noise, which a jpg codec finds as hard as a photograph."""
    rng = np.random.default_rng(seed)
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(count, 3, side, side))
    noise = rng.integers(-6, 7, (2 * side, 2 * side, 3), dtype=np.int16)
    for row in rows:
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC)).astype(np.int16)
        top, left = rng.integers(0, side, 2)
        pixels += noise[top : top + side, left : left + side]
        row[:] = np.clip(pixels, 0, 255, out=pixels).astype(np.uint8).transpose(2, 0, 1)
    rows.flush()


@dataclass(frozen=True)
class StoredRows:
    """A source of the rows, each a .bmp file in memory; the label is the row's number."""

    path: Path
    media: str = "image"
    classes: tuple[str, ...] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def _rows(self) -> np.ndarray:
        return np.load(self.path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> RawSample:
        return RawSample(f"{index:08d}.bmp", "all", {"image": pack(self._rows[index]).tobytes(), "label": index})

    def __reduce__(self) -> tuple[object, ...]:
        return StoredRows, (self.path,)  # without the opened file
