"""FFCV: arrays as they are in one .beton file, copied by its compiled decoder out of the page cache, fully shuffled.

With three batches ahead, its default, and with one: fewer buffers, which stay in the processor's caches. Its raw
images (RGBImageField) were as fast as its arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ffcv.fields import IntField, NDArrayField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.decoders import NDArrayDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import Squeeze, ToTensor
from ffcv.writer import DatasetWriter
from peer_protocol import Batch, Epoch, serve

FILE = "rows.beton"


class LabelledRows:
    def __init__(self, path: Path) -> None:
        self.rows = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.array(self.rows[index]), int(index)


def prepare(rows: Path, folder: Path) -> None:
    source = LabelledRows(rows)
    image = NDArrayField(dtype=np.dtype(np.uint8), shape=source.rows.shape[1:])
    writer = DatasetWriter(str(folder / FILE), {"image": image, "label": IntField()}, num_workers=2)
    writer.from_indexed_dataset(source)


def cases(folder: Path, batch_size: int) -> dict[str, Epoch]:
    return {
        f"num_workers={workers}, batches_ahead={ahead}": loader_epoch(folder, batch_size, workers, ahead)
        for workers in (1, 2)
        for ahead in (1, 3)
    }


def loader_epoch(folder: Path, batch_size: int, workers: int, ahead: int) -> Epoch:
    pipelines = {"image": [NDArrayDecoder(), ToTensor()], "label": [IntDecoder(), ToTensor(), Squeeze([1])]}
    loader = Loader(
        str(folder / FILE), batch_size, num_workers=workers, batches_ahead=ahead, order=OrderOption.RANDOM, seed=0,
        os_cache=True, drop_last=False, pipelines=pipelines,
    )  # fmt: skip

    def epoch(seed: int) -> Iterator[Batch]:
        loader.next_epoch = seed
        yield from loader

    return epoch


if __name__ == "__main__":
    serve(prepare, cases, "ffcv", "numba")
