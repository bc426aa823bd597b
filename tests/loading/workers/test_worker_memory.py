"""Shared memory of workers: reused when nobody looks at it, never overwritten while somebody does, gone at the end."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worker_functions

from precompile import CompiledDataset, Loader
from precompile.format.schema import FieldSpec

SHAPE = (3, 32, 32)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    root = tmp_path_factory.mktemp("pictures") / "x.pc"
    request.getfixturevalue("write_dataset")(root, [FieldSpec("image", "uint8", SHAPE)], 200, num_shards=3)
    return root


def num_shared_files() -> int:
    """Pieces of batch memory that this process has mapped."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("precompile-batch")


needs_memfd = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs files in memory (Linux)")


@pytest.mark.parametrize("name", ["same", "as_float", "sometimes_new"])
def test_no_batch_is_overwritten_while_it_is_held(pictures: Path, name: str) -> None:
    dataset = CompiledDataset(pictures, fields="image", transform=getattr(worker_functions, name))
    loader = Loader(dataset, 8, shuffle=True, workers=2, start_method="fork")
    rng, held = random.Random(0), []
    for epoch in range(30):
        order = list(Loader(dataset, 8, shuffle=True).sampler) if epoch == 0 else None
        for number, batch in enumerate(loader):
            part = batch[rng.randrange(len(batch))] if rng.random() < 0.5 else batch
            held.append((part, part.clone()))
            if order is not None:
                expected = dataset.collate([dataset[index] for index in order[8 * number : 8 * number + 8]])
                assert torch.equal(batch, expected)
            if rng.random() < 0.3:
                held = rng.sample(held, len(held) // 3)
        assert all(torch.equal(part, copy) for part, copy in held)


@needs_memfd
def test_memory_is_reused_and_comes_back(pictures: Path) -> None:
    dataset = CompiledDataset(pictures, fields="image", transform=worker_functions.same)
    before = num_shared_files()
    loader = Loader(dataset, 8, shuffle=True, workers=2, start_method="fork", prefetch=2)
    for _ in loader:
        pass
    few = num_shared_files()
    for _ in range(5):
        for _ in loader:
            pass
    del _
    assert num_shared_files() <= max(few, before + 10)
    kept = list(loader)
    assert num_shared_files() >= before + len(kept) / 16
    del kept, loader
    assert num_shared_files() == before


@needs_memfd
def test_a_batch_outlives_its_loader(pictures: Path) -> None:
    dataset = CompiledDataset(pictures, fields="image", transform=worker_functions.same)
    before = num_shared_files()
    loader = Loader(dataset, 200, workers=1, start_method="fork")
    (batch,) = loader
    del loader
    assert torch.equal(batch, dataset.collate([dataset[index] for index in range(200)]))
    del batch
    assert num_shared_files() == before


def test_a_transform_may_keep_samples(pictures: Path) -> None:
    dataset = CompiledDataset(pictures, fields="image", transform=worker_functions.Keeper())
    for loader in (Loader(dataset, 8, workers=1, start_method="fork"), Loader(dataset, 8)):
        for _ in range(3):
            for number, batch in enumerate(loader):
                assert torch.equal(batch[0], dataset[8 * number])


def test_a_batch_may_be_written_to(pictures: Path) -> None:
    dataset = CompiledDataset(pictures, fields="image", transform=worker_functions.same)
    loader = Loader(dataset, 8, workers=2, start_method="fork")
    for _ in range(3):
        for number, batch in enumerate(loader):
            assert torch.equal(batch[1], dataset[8 * number + 1])
            batch.zero_()


def test_batches_may_grow_and_shrink(tmp_path: Path, write_dataset: Callable[..., Any]) -> None:
    samples = write_dataset(tmp_path / "x.pc", [FieldSpec("clip", "float32", (None, 50))], 60)
    dataset = CompiledDataset(tmp_path / "x.pc", fields="clip", transform=worker_functions.same)
    loader = Loader(dataset, 1, shuffle=True, workers=2, start_method="fork")
    for _ in range(3):
        found = sorted(batch.sum().item() for batch in loader)
        np.testing.assert_allclose(found, sorted(float(sample["clip"].sum()) for sample in samples))


def test_a_held_batch_is_safe_in_a_forked_child(pictures: Path) -> None:
    """The parent does not see who looks at it there."""
    dataset = CompiledDataset(pictures, fields="image", transform=worker_functions.same)
    loader = Loader(dataset, 8, workers=1, start_method="fork", prefetch=1)
    stream = iter(loader)
    batch = next(stream)
    copy = batch.clone()
    to_child, to_parent = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(to_child[0], 1)
        os._exit(0 if np.array_equal(batch.numpy(), copy.numpy()) else 1)
    del batch
    for _ in stream:
        pass
    for _ in loader:
        pass
    os.write(to_child[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    for descriptor in (*to_child, *to_parent):
        os.close(descriptor)
