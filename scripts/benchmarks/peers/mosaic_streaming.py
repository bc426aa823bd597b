"""MosaicML Streaming: pixels as bytes in uncompressed MDS shards of local disk, without hashes, shuffled as by default.

Which order comes next is its own count of epochs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from peer_protocol import Batch, Epoch, serve, worker_cases
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

SHARDS, SHAPE = "shards", "shape.npy"


def prepare(rows: Path, folder: Path) -> None:
    stored = np.load(rows, mmap_mode="r")
    np.save(folder / SHAPE, stored.shape[1:])
    with MDSWriter(out=str(folder / SHARDS), columns={"image": "bytes", "label": "int"}) as writer:
        for label, row in enumerate(stored):
            writer.write({"image": row.tobytes(), "label": label})


def cases(folder: Path, batch_size: int) -> dict[str, Epoch]:
    clean_stale_shared_memory()
    return worker_cases(partial(loader_epoch, folder, batch_size))


def loader_epoch(folder: Path, batch_size: int, workers: int) -> Epoch:
    with mock.patch.object(tempfile, "tempdir", str(folder)):  # it leaves its lock files there
        dataset = StreamingDataset(local=str(folder / SHARDS), shuffle=True, batch_size=batch_size)
    stack = partial(stack_bytes, tuple(np.load(folder / SHAPE)))
    loader = StreamingDataLoader(
        dataset, batch_size=batch_size, num_workers=workers, persistent_workers=workers > 0, collate_fn=stack
    )

    def epoch(seed: int) -> Iterator[Batch]:
        yield from loader

    return epoch


def stack_bytes(shape: tuple[int, ...], samples: list[dict[str, Any]]) -> Batch:
    images = torch.stack([torch.frombuffer(sample["image"], dtype=torch.uint8) for sample in samples])
    return images.view(-1, *shape), torch.tensor([sample["label"] for sample in samples])


if __name__ == "__main__":
    serve(prepare, cases, "mosaicml-streaming")
