"""How fast a compiled dataset is read, against the limit: a gather of the same rows from one dense array.

    python scripts/benchmarks/read.py                        # 6,000 x 3x224x224, batch 256
    python scripts/benchmarks/read.py --side 32 --samples 50000
    python scripts/benchmarks/read.py --shards 8,512 --open-files 256

All cases run in turn, once a round, so that a machine whose speed drifts slows them alike; figures are medians, and
ratios are medians of each round's ratio to the reference of that round. Warm: everything is in the page cache.
The reference is numpy.take of shuffled rows into three rotating, aligned, huge-page buffers, by one thread.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from machine_line import machine_line
from synthetic import RandomImages
from torch.utils.data import DataLoader

import precompile
from precompile.loading.buffers import aligned_buffer


def dense_reference(dataset: precompile.CompiledDataset, batch_size: int) -> Callable[[int], int]:
    """The limit: one numpy.take a batch from one array that holds all rows."""
    count, row_bytes = len(dataset), dataset[0].numel()
    rows = aligned_buffer(count * row_bytes).reshape(count, row_bytes)
    for index in range(count):
        rows[index] = dataset[index].numpy().reshape(-1)
    buffers = [aligned_buffer(batch_size * row_bytes).reshape(batch_size, row_bytes) for _ in range(3)]
    for buffer in buffers:
        buffer[:] = 0

    def epoch(seed: int) -> int:
        order = np.random.default_rng(seed).permutation(count)
        done = 0
        for number, start in enumerate(range(0, count - batch_size + 1, batch_size)):
            np.take(rows, order[start : start + batch_size], axis=0, out=buffers[number % 3], mode="clip")
            done += batch_size
        return done

    return epoch


def loader_epoch(dataset: precompile.CompiledDataset, batch_size: int) -> Callable[[int], int]:
    loader = precompile.Loader(dataset, batch_size, shuffle=True, drop_last=True)

    def epoch(seed: int) -> int:
        loader.set_epoch(seed)
        return sum(len(batch) for batch in loader)

    return epoch


def dataloader_epoch(dataset: precompile.CompiledDataset, batch_size: int, workers: int) -> Callable[[int], int]:
    loader = DataLoader(
        dataset, batch_size, shuffle=True, drop_last=True, num_workers=workers, collate_fn=dataset.collate,
        persistent_workers=workers > 0,
    )  # fmt: skip
    return lambda seed: sum(len(batch) for batch in loader)


def measure(cases: dict[str, Callable[[int], int]], *, rounds: int, min_seconds: float) -> dict[str, list[float]]:
    """Samples per second of each case and round, interleaved; the first round is a warm-up and left out."""
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, epoch in cases.items():
            began, done, epochs = time.perf_counter(), 0, 0
            while not epochs or time.perf_counter() - began < min_seconds:
                done += epoch(1000 * number + epochs)
                epochs += 1
            if number:
                rates[name].append(done / (time.perf_counter() - began))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--side", type=int, default=224, help="height and width of the pictures")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--min-seconds", type=float, default=0.2, help="of each case and round")
    parser.add_argument(
        "--shards", default="", help="also flat datasets cut into these numbers of shards, such as 8,512"
    )
    parser.add_argument("--open-files", type=int, help="limit on open files (ulimit -n)")
    parser.add_argument("--dataloader", action="store_true", help="also torch's DataLoader, with 0 and 2 workers")
    parser.add_argument("--dir", type=Path, help="where to build (default: a temporary folder)")
    options = parser.parse_args()
    if options.open_files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (options.open_files, options.open_files))
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory(dir=options.dir) as scratch:
        run(options, Path(scratch))


def run(options: argparse.Namespace, scratch: Path) -> None:
    source = RandomImages(options.samples, options.side, options.side)
    record_bytes = 3 * options.side**2
    cases: dict[str, Callable[[int], int]] = {}
    for store in ("flat", "lmdb"):
        dataset = build(source, scratch / store, store=store)
        if not cases:
            cases["reference: numpy.take, dense"] = dense_reference(dataset, options.batch_size)
        cases[f"Loader, {store}, 1 thread"] = loader_epoch(dataset, options.batch_size)
    for shards in (int(text) for text in options.shards.split(",") if text):
        size = -(-options.samples * record_bytes // shards)
        dataset = build(source, scratch / f"cut{shards}", store="flat", shard_size=size)
        cases[f"Loader, flat, {len(dataset.manifest.shards)} shards"] = loader_epoch(dataset, options.batch_size)
    if options.dataloader:
        for workers in (0, 2):
            cases[f"DataLoader, lmdb, num_workers={workers}"] = dataloader_epoch(dataset, options.batch_size, workers)
    print(machine_line("torch", "numpy"))
    print(f"{options.samples} x 3x{options.side}x{options.side} uint8, batch {options.batch_size}, shuffled, warm, "
          f"{options.rounds} rounds")  # fmt: skip
    rates = measure(cases, rounds=options.rounds, min_seconds=options.min_seconds)
    reference = rates[next(iter(cases))]
    for name, values in rates.items():
        ratio = statistics.median(value / limit for value, limit in zip(values, reference))
        print(f"{name:<36} {statistics.median(values):>12,.0f} samples/s   {ratio:.2f} of the reference")


def build(source: RandomImages, out: Path, **recipe: object) -> precompile.CompiledDataset:
    precompile.build(source, out, quiet=True, **recipe)
    return precompile.CompiledDataset(out, fields="image")


if __name__ == "__main__":
    main()
