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

from precompile.errors import ImpureWorkerError, LoaderStalled, PrecompileError, WorkerDiedError

if TYPE_CHECKING:
    from precompile.advise.doctor import doctor
    from precompile.loading.caching.options import Cache
    from precompile.loading.dataset import CompiledDataset
    from precompile.loading.loader import Loader
    from precompile.loading.processes.init_worker import init_worker
    from precompile.loading.reading.collate import Pad, Padded
    from precompile.loading.reading.windows import CenterCrop, CenterTimeWindow, RandomCrop, RandomTimeWindow
    from precompile.loading.sampling.block_shuffle import BlockShuffleSampler
    from precompile.loading.sampling.length_batches import LengthBatchSampler
    from precompile.loading.sampling.samplers import ShuffleSampler
    from precompile.loading.watching.watch import watch
    from precompile.pipeline.build import Summary, build

__version__ = "0.1.0"

_HOMES = {
    "Cache": "precompile.loading.caching.options",
    "CompiledDataset": "precompile.loading.dataset",
    "Loader": "precompile.loading.loader",
    "Pad": "precompile.loading.reading.collate",
    "Padded": "precompile.loading.reading.collate",
    "CenterCrop": "precompile.loading.reading.windows",
    "CenterTimeWindow": "precompile.loading.reading.windows",
    "RandomCrop": "precompile.loading.reading.windows",
    "RandomTimeWindow": "precompile.loading.reading.windows",
    "BlockShuffleSampler": "precompile.loading.sampling.block_shuffle",
    "LengthBatchSampler": "precompile.loading.sampling.length_batches",
    "ShuffleSampler": "precompile.loading.sampling.samplers",
    "init_worker": "precompile.loading.processes.init_worker",
    "watch": "precompile.loading.watching.watch",
    "build": "precompile.pipeline.build",
    "Summary": "precompile.pipeline.build",
    "doctor": "precompile.advise.doctor",
}

__all__ = [
    "BlockShuffleSampler", "Cache", "CenterCrop", "CenterTimeWindow", "CompiledDataset", "ImpureWorkerError",
    "LengthBatchSampler", "Loader", "LoaderStalled", "Pad", "Padded", "PrecompileError", "RandomCrop",
    "RandomTimeWindow", "ShuffleSampler", "Summary", "WorkerDiedError", "__version__", "build", "doctor",
    "init_worker", "watch",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'precompile' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
