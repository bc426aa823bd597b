"""Data for benchmarks, made on the fly: pixels without a decoder's cost, and photo-like jpg files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from precompile.format.bmp import pack
from precompile.pipeline.sample import RawSample


@dataclass(frozen=True)
class RandomImages:
    """A source of `count` pictures of noise, each a .bmp file in memory."""

    count: int
    height: int
    width: int
    media: str = "image"
    classes: tuple[str, ...] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> RawSample:
        pixels = np.random.default_rng(index).integers(0, 256, (3, self.height, self.width), dtype=np.uint8)
        return RawSample(f"{index:08d}.bmp", "all", {"image": pack(pixels).tobytes(), "label": index % 1000})


def make_photos(root: Path, *, count: int, seed: int = 0) -> Path:
    """`count` jpg of about 500x375 in ten class folders: smooth colour, some detail, some noise; about 55 kB each."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        folder = root / f"class{number % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        width, height = (int(side) for side in (500 + rng.integers(-30, 30), 375 + rng.integers(-30, 30)))
        layers = []
        for rows, columns in ((9, 12), (height // 6, width // 6)):
            coarse = Image.fromarray(rng.integers(0, 256, (rows, columns, 3), dtype=np.uint8))
            layers.append(np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.float32))
        pixels = 0.75 * layers[0] + 0.25 * layers[1] + rng.integers(-6, 7, (height, width, 1))
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(folder / f"{number:06d}.jpg", quality=90)
    return root
