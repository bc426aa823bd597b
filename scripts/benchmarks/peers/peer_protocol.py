"""What the file of a peer is: `prepare` and `cases`, and `serve` as its main program.

    python scripts/benchmarks/peers/FILE.py rows.npy FOLDER

writes the rows of rows.npy (uint8, (n, 3, height, width)) to FOLDER as the peer stores them, says which cases there
are, and then runs one epoch for each line of standard input:

    < {"cases": ["num_workers=0", "num_workers=2"], "versions": {"litdata": "0.2.76"}}
    > {"case": "num_workers=0", "seed": 3}
    < {"samples": 6000, "seconds": 0.17}
    > {"case": "num_workers=0", "seed": 4, "check": true}
    < {"samples": 6000, "seconds": 0.21}

A process each, so that a peer may have an interpreter of its own, and its threads and settings touch no other peer.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

# Images, uint8 (b, 3, height, width), and labels, integers (b,): the number of each image's row.
Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]
# From a seed to the batches of a shuffled epoch. A batch is only looked at until the next one is asked for.
Epoch: TypeAlias = Callable[[int], Iterable[Batch]]
Prepare: TypeAlias = Callable[[Path, Path], None]  # rows.npy, folder
Cases: TypeAlias = Callable[[Path, int], dict[str, Epoch]]  # folder, batch size
Expected: TypeAlias = Callable[[Path, np.ndarray], np.ndarray]  # folder, labels: the images, when they are no rows


def serve(prepare: Prepare, cases: Cases, *distributions: str, expected: Expected | None = None) -> None:
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("rows", type=Path, help="uint8 (n, 3, height, width), as numpy.save writes it")
    parser.add_argument("folder", type=Path, help="where to write; an earlier run's files there are used again")
    parser.add_argument("--batch-size", type=int, default=256)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer

    finished = options.folder / "finished"
    if not finished.exists():
        options.folder.mkdir(parents=True, exist_ok=True)
        prepare(options.rows, options.folder)
        finished.touch()
    rows = np.load(options.rows, mmap_mode="r")
    epochs = cases(options.folder, options.batch_size)
    versions = {name: importlib.metadata.version(name) for name in distributions}
    print(json.dumps({"cases": list(epochs), "versions": versions}), file=answers)
    for line in sys.stdin:
        command = json.loads(line)
        began = time.perf_counter()
        batches = epochs[command["case"]](command["seed"])
        if command.get("check"):
            wanted = rows.__getitem__ if expected is None else lambda labels: expected(options.folder, labels)
            samples = check(batches, len(rows), wanted)
        else:
            samples = sum(len(labels) for images, labels in batches)
        print(json.dumps({"samples": samples, "seconds": time.perf_counter() - began}), file=answers)


def check(batches: Iterable[Batch], count: int, wanted: Callable[[np.ndarray], np.ndarray]) -> int:
    """The number of samples. ValueError unless each comes once, in a shuffled order, with its own bytes."""
    order = []
    for images, labels in batches:
        rows = labels.numpy().astype(np.int64)  # a copy: the batch is only valid until the next
        pixels = wanted(rows)
        if images.dtype != torch.uint8 or images.shape != pixels.shape:
            raise ValueError(f"a batch must be uint8 {pixels.shape}, got {images.dtype} {tuple(images.shape)}")
        wrong = (images.numpy() != pixels).any(axis=(1, 2, 3))
        if wrong.any():
            raise ValueError(
                f"{wrong.sum()} of {len(rows)} images have other pixels, the first with label {rows[wrong][0]}"
            )
        order.append(rows)
    numbers = np.concatenate(order)
    times = np.bincount(numbers, minlength=count)
    if (times != 1).any():
        raise ValueError(
            f"each of {count} samples must come once: {(times == 0).sum()} are missing, {(times > 1).sum()} come again"
        )
    if count > 8 and (np.diff(numbers) == 1).mean() > 0.5:
        raise ValueError("the samples must come in a shuffled order, got them as they are stored")
    return len(numbers)


def as_it_is(batch: Batch) -> Batch:
    """The collate_fn of datasets that give whole batches."""
    return batch


def worker_cases(epoch_with: Callable[[int], Epoch]) -> dict[str, Epoch]:
    """The cases of a loader with worker processes, by their number.

    Without workers, torch stacks a batch by as many threads as it has: two are faster, but far slower than one where
    anything else runs.
    """
    here = epoch_with(0)
    return {
        "num_workers=0, 1 thread": _threads(here, 1),
        "num_workers=0, 2 threads": _threads(here, 2),
        "num_workers=2": epoch_with(2),
    }


def _threads(epoch: Epoch, count: int) -> Epoch:
    def limited(seed: int) -> Iterator[Batch]:
        torch.set_num_threads(count)
        yield from epoch(seed)

    return limited


def dataloader_epoch(
    dataset: Dataset[Any], batch_size: int, workers: int, *, start_method: str | None = None, **options: Any
) -> Epoch:
    """torch's DataLoader, whose workers live on from epoch to epoch."""
    generator = torch.Generator()
    if workers:
        options |= {"persistent_workers": True, "multiprocessing_context": start_method}
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=workers, generator=generator, **options)

    def epoch(seed: int) -> Iterator[Batch]:
        generator.manual_seed(seed)
        yield from loader

    return epoch
