"""Compile image and audio datasets ahead of time; train from memory reads.

    import precompile
    precompile.build("photos/", "photos.pc", size=256, crop=224)
    dataset = precompile.CompiledDataset("photos.pc", fields=("image", "label"), split="train")
    for images, labels in precompile.Loader(dataset, batch_size=256, shuffle=True): ...

Names are loaded when they are first used: training never imports a decoder, building never imports torch
unless the recipe needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from precompile.errors import PrecompileError

if TYPE_CHECKING:
    from precompile.advise.doctor import doctor
    from precompile.loading.collate import Padded
    from precompile.loading.dataset import CompiledDataset
    from precompile.loading.loader import Loader
    from precompile.pipeline.build import Summary, build

__version__ = "0.1.0"

_HOMES = {
    "CompiledDataset": "precompile.loading.dataset",
    "Loader": "precompile.loading.loader",
    "Pad": "precompile.loading.collate",
    "Padded": "precompile.loading.collate",
    "CenterCrop": "precompile.loading.windows",
    "CenterTimeWindow": "precompile.loading.windows",
    "RandomCrop": "precompile.loading.windows",
    "RandomTimeWindow": "precompile.loading.windows",
    "BlockShuffleSampler": "precompile.loading.samplers",
    "LengthBatchSampler": "precompile.loading.length_batches",
    "ShuffleSampler": "precompile.loading.samplers",
    "build": "precompile.pipeline.build",
    "Summary": "precompile.pipeline.build",
    "doctor": "precompile.advise.doctor",
}

__all__ = ["CompiledDataset", "Loader", "Padded", "PrecompileError", "Summary", "__version__", "build", "doctor"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'precompile' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
