"""Forked readers of a parent that keeps many threads busy, and many readers at once: nothing hangs, all is right."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precompile.format.schema import FieldSpec

REPOSITORY = Path(__file__).resolve().parents[2]
STORES = ("flat", "lmdb")

# A forked child inherits the parent's OpenMP team without its threads: a torch operation of several threads in
# the child then waits for ever. So each fork here follows such operations in the thread that forks, and samples
# are large enough for torch to use several threads on one of them.
AFTER_TORCH = """
import multiprocessing, sys, zlib
import torch
from torch.utils.data import DataLoader
from precompile import CompiledDataset, Loader

def checksums(images):
    return [zlib.crc32(image) for image in images.numpy()]

def one(index):
    return checksums(dataset[index][None])

def several(indices):
    return [zlib.crc32(image.numpy()) for image in dataset.__getitems__(indices)]

def collated(indices):
    return checksums(dataset.collate(dataset.__getitems__(indices)))

def loader(indices):
    return [value for batch in Loader(dataset, 4, sampler=indices) for value in checksums(batch)]

def keep_threads_busy():
    zeros = torch.zeros(45_000_000, dtype=torch.uint8)
    square = torch.rand(500, 500)
    return zeros.clone(), square @ square, torch.stack([square] * 20).float()

def dataloader(**options):
    loader = DataLoader(dataset, 4, num_workers=2, multiprocessing_context="fork", timeout=60, **options)
    return [value for batch in loader for value in checksums(batch)]

def pool(function, parts):
    with context.Pool(2) as workers:
        return [value for part in workers.map_async(function, parts).get(60) for value in part]

torch.set_num_threads(4)
context = multiprocessing.get_context("fork")
forks = 0
for root in sys.argv[1:] * 3:
    dataset = CompiledDataset(root, fields="image")
    everything = list(range(len(dataset)))
    parts = [everything[:9], everything[9:]]
    expected = several(everything)
    for read in (
        dataloader, lambda: dataloader(collate_fn=dataset.collate), lambda: pool(one, everything),
        lambda: pool(several, parts), lambda: pool(collated, parts), lambda: pool(loader, parts),
    ):
        keep_threads_busy()
        assert read() == expected, root
        forks += 2
print(forks)
"""

AT_ONCE = """
import multiprocessing, sys, zlib
from precompile.loading.dataset import CompiledDataset

def read():
    barrier.wait(60)
    dataset = CompiledDataset(sys.argv[1], fields="image")
    results.put([zlib.crc32(dataset[index].numpy()) for index in range(len(dataset))])

context = multiprocessing.get_context("fork")
barrier, results = context.Barrier(64), context.SimpleQueue()
readers = [context.Process(target=read) for _ in range(64)]
for reader in readers:
    reader.start()
found = [results.get() for _ in readers]
for reader in readers:
    reader.join()
assert not any(reader.exitcode for reader in readers)
assert all(checksums == found[0] for checksums in found)
print(*found[0])
"""


def run_script(code: str, *arguments: Path) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(270)
def test_no_hang_after_torch_used_many_threads(tmp_path: Path, write_dataset: Callable[..., Any]) -> None:
    roots = [tmp_path / store for store in STORES]
    for root in roots:
        write_dataset(root, [FieldSpec("image", "uint8", (3, 224, 224))], 16, store=root.name, num_shards=2)
    assert int(run_script(AFTER_TORCH, *roots)) >= 50


@pytest.mark.parametrize("store", STORES)
def test_64_processes_open_at_the_same_moment(tmp_path: Path, write_dataset: Callable[..., Any], store: str) -> None:
    samples = write_dataset(
        tmp_path / "x.pc", [FieldSpec("image", "uint8", (3, 30, 30))], 40, store=store, num_shards=4
    )
    found = run_script(AT_ONCE, tmp_path / "x.pc").split()
    assert [int(value) for value in found] == [zlib.crc32(sample["image"]) for sample in samples]
