"""WebDataset: pixels as they are in tar shards of local disk; shards are shuffled, and samples in a buffer of 1,000.

Its shuffle takes no seed by epoch, so epochs are in an order of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from peer_protocol import Batch, Epoch, serve, worker_cases

SHARDS, SHAPE = 16, "shape.npy"


def prepare(rows: Path, folder: Path) -> None:
    stored = np.load(rows, mmap_mode="r")
    np.save(folder / SHAPE, stored.shape[1:])
    for shard in range(SHARDS):
        with webdataset.TarWriter(str(folder / f"{shard:04d}.tar")) as writer:
            for label in range(shard, len(stored), SHARDS):
                writer.write({"__key__": f"{label:08d}", "bin": stored[label].tobytes(), "cls": label})


def cases(folder: Path, batch_size: int) -> dict[str, Epoch]:
    return worker_cases(partial(loader_epoch, folder, batch_size))


def loader_epoch(folder: Path, batch_size: int, workers: int) -> Epoch:
    shards = sorted(str(path) for path in folder.glob("*.tar"))
    stack = partial(stack_bytes, tuple(np.load(folder / SHAPE)))
    dataset = webdataset.WebDataset(shards, shardshuffle=SHARDS).shuffle(1000).batched(batch_size, collation_fn=stack)
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)

    def epoch(seed: int) -> Iterator[Batch]:
        yield from loader

    return epoch


def stack_bytes(shape: tuple[int, ...], samples: list[dict[str, Any]]) -> Batch:
    images = torch.stack([torch.frombuffer(sample["bin"], dtype=torch.uint8) for sample in samples])
    return images.view(-1, *shape), torch.tensor([int(sample["cls"]) for sample in samples])


if __name__ == "__main__":
    serve(prepare, cases, "webdataset")
