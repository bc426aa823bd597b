"""LMDB with one pickle of (array, label) a sample, by the usual map-style dataset in torch's DataLoader.

Read without lock and read-ahead, in one transaction that lives as long as the process. Workers are spawned: a process
forked from one that has the environment open may not open it.
"""

from __future__ import annotations

import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import torch
from peer_protocol import Epoch, dataloader_epoch, serve, worker_cases
from torch.utils.data import Dataset

FILE = "pickles.lmdb"


def prepare(rows: Path, folder: Path) -> None:
    stored = np.load(rows, mmap_mode="r")
    room = 2 * stored.nbytes + len(stored) * 8192 + (64 << 20)
    with (
        lmdb.open(str(folder / FILE), subdir=False, map_size=room) as environment,
        environment.begin(write=True) as txn,
    ):
        for label, row in enumerate(stored):
            txn.put(b"%08d" % label, pickle.dumps((np.array(row), label), protocol=5), append=True)


class PickledRows(Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self.path = path
        self._txn: tuple[int, Any] = (-1, None)
        self._count = self.txn.stat()["entries"]

    @property
    def txn(self) -> Any:
        if self._txn[0] != os.getpid():
            environment = lmdb.open(str(self.path), subdir=False, readonly=True, lock=False, readahead=False)
            self._txn = (os.getpid(), environment.begin(buffers=True))
        return self._txn[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_txn": (-1, None)}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image, label = pickle.loads(self.txn.get(b"%08d" % index))
        return torch.from_numpy(image), label


def cases(folder: Path, batch_size: int) -> dict[str, Epoch]:
    dataset = PickledRows(folder / FILE)
    return worker_cases(partial(dataloader_epoch, dataset, batch_size, start_method="spawn"))


if __name__ == "__main__":
    serve(prepare, cases, "lmdb")
