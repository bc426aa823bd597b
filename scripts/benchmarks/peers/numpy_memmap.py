"""One dense .npy file, memory-mapped: a batch is one fancy index, in a plain loop and in torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_protocol import Batch, Epoch, as_it_is, dataloader_epoch, serve
from torch.utils.data import Dataset


def prepare(rows: Path, folder: Path) -> None:
    (folder / "rows.npy").symlink_to(rows.resolve())


class MappedRows(Dataset[Any]):
    """Gives whole batches, so that the DataLoader has nothing to stack."""

    def __init__(self, path: Path) -> None:
        self.rows = np.asarray(np.load(path, mmap_mode="r"))  # a plain array is indexed faster than a numpy.memmap

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[int]) -> Batch:
        labels = np.array(indices)
        return torch.from_numpy(self.rows[labels]), torch.from_numpy(labels)


def cases(folder: Path, batch_size: int) -> dict[str, Epoch]:
    dataset = MappedRows(folder / "rows.npy")

    def loop(seed: int) -> Iterator[Batch]:
        order = np.random.default_rng(seed).permutation(len(dataset))
        for start in range(0, len(dataset), batch_size):
            labels = order[start : start + batch_size]
            yield torch.from_numpy(dataset.rows[labels]), torch.from_numpy(labels)

    return {"loop": loop, "num_workers=2": dataloader_epoch(dataset, batch_size, 2, collate_fn=as_it_is)}


if __name__ == "__main__":
    serve(prepare, cases, "numpy")
