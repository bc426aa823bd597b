"""precompile's Loader, one thread, from flat shards and from LMDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmark_rows import StoredRows
from peer_protocol import Batch, Epoch, serve

import precompile

STORES = ("flat", "lmdb")


def prepare(rows: Path, folder: Path) -> None:
    for store in STORES:
        precompile.build(StoredRows(rows.resolve()), folder / store, store=store, quiet=True)


def cases(folder: Path, batch_size: int) -> dict[str, Epoch]:
    return {f"Loader, {store}": loader_epoch(folder / store, batch_size) for store in STORES}


def loader_epoch(root: Path, batch_size: int) -> Epoch:
    dataset = precompile.CompiledDataset(root, fields=("image", "label"))
    loader = precompile.Loader(dataset, batch_size, shuffle=True)

    def epoch(seed: int) -> Iterator[Batch]:
        loader.set_epoch(seed)
        yield from loader

    return epoch


if __name__ == "__main__":
    serve(prepare, cases, "precompile")
