"""LitData: uncompressed chunks on local disk, mapped in place; chunks are shuffled, and samples within them.

Large samples are one-dimensional tensors, deserialized one by one (batch_decode=0); small ones are bytes, which it
fetches by the chunk. Each is more than twice as fast as the other at its size. Which order comes next is its own
count of epochs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ["LITDATA_DISABLE_VERSION_CHECK"] = "1"  # it would ask the package index

import numpy as np
import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize
from peer_protocol import Batch, Epoch, serve, worker_cases

CHUNKS, SHAPE = "chunks", "shape.npy"
SMALL_BYTES = 1 << 16


def prepare(rows: Path, folder: Path) -> None:
    stored = np.load(rows, mmap_mode="r")
    np.save(folder / SHAPE, stored.shape[1:])
    for name in ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER"):
        os.environ[name] = str(folder / name)  # else it leaves files in the folder of all temporary files
    optimize(
        partial(sample, rows), list(range(len(stored))), str(folder / CHUNKS), chunk_bytes="64MB", num_workers=2,
        verbose=False,
    )  # fmt: skip


def sample(rows: Path, label: int) -> dict[str, Any]:
    row = np.load(rows, mmap_mode="r")[label]
    small = row.nbytes < SMALL_BYTES
    return {"image": row.tobytes() if small else torch.from_numpy(row.flatten()), "label": label}


def cases(folder: Path, batch_size: int) -> dict[str, Epoch]:
    return worker_cases(partial(loader_epoch, folder, batch_size))


def loader_epoch(folder: Path, batch_size: int, workers: int) -> Epoch:
    dataset = StreamingDataset(str(folder / CHUNKS), shuffle=True, batch_decode=0)
    stack = partial(stack_images, tuple(np.load(folder / SHAPE)))
    loader = StreamingDataLoader(
        dataset, batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0,
        collate_fn=stack,
    )  # fmt: skip

    def epoch(seed: int) -> Iterator[Batch]:
        yield from loader

    return epoch


def stack_images(shape: tuple[int, ...], samples: list[dict[str, Any]]) -> Batch:
    images = [sample["image"] for sample in samples]
    tensors = [torch.frombuffer(image, dtype=torch.uint8) if isinstance(image, bytes) else image for image in images]
    return torch.stack(tensors).view(-1, *shape), torch.tensor([sample["label"] for sample in samples])


if __name__ == "__main__":
    serve(prepare, cases, "litdata")
