"""The reference of all ratios: numpy.take of shuffled rows of one dense array, by one thread.

Into three rotating, 64-byte-aligned buffers in huge pages, as no loader could do better that hands out a batch while
it fills the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from peer_protocol import Batch, Epoch, serve

from precompile.loading.reading.buffers import aligned_buffer


def prepare(rows: Path, folder: Path) -> None:
    (folder / "rows.npy").symlink_to(rows.resolve())


def cases(folder: Path, batch_size: int) -> dict[str, Epoch]:
    stored = np.load(folder / "rows.npy", mmap_mode="r")
    count, row_bytes = len(stored), stored[0].size
    rows = aligned_buffer(count * row_bytes).reshape(count, row_bytes)
    rows[:] = stored.reshape(count, row_bytes)
    buffers = [aligned_buffer(batch_size * row_bytes).reshape(batch_size, row_bytes) for _ in range(3)]
    for buffer in buffers:
        buffer[:] = 1

    def epoch(seed: int) -> Iterator[Batch]:
        order = np.random.default_rng(seed).permutation(count)
        for number, start in enumerate(range(0, count, batch_size)):
            labels = order[start : start + batch_size]
            images = buffers[number % 3][: len(labels)]
            np.take(rows, labels, axis=0, out=images, mode="clip")
            yield torch.from_numpy(images).view(-1, *stored.shape[1:]), torch.from_numpy(labels)

    return {"numpy.take, dense": epoch}


if __name__ == "__main__":
    serve(prepare, cases, "numpy")
