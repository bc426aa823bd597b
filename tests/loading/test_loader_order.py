"""Loader: which samples come when, by epoch, seed and sampler."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from precompile import CompiledDataset, Loader

pytestmark = pytest.mark.filterwarnings("error")

Written = tuple[Path, list[dict[str, Any]]]


def order_of(dataset: CompiledDataset, loader: Loader) -> list[int]:
    """Which samples a loader gave, in order; every note of `images` is unique."""
    notes = list(dataset.column("note"))
    return [notes.index(note) for batch in loader for note in batch["note"]]


@pytest.mark.parametrize("prefetch", [1, 2, 7])
def test_prefetch_changes_nothing(images: Written, prefetch: int) -> None:
    dataset = CompiledDataset(images[0])
    assert order_of(dataset, Loader(dataset, 3, prefetch=prefetch)) == list(range(50))


def test_epochs_differ_and_are_reproducible(images: Written) -> None:
    dataset = CompiledDataset(images[0])
    loader = Loader(dataset, 8, shuffle=True, seed=1)
    epochs = [order_of(dataset, loader) for _ in range(3)]
    assert all(sorted(order) == list(range(50)) for order in epochs)
    assert len({tuple(order) for order in epochs}) == 3
    assert [order_of(dataset, Loader(dataset, 8, shuffle=True, seed=1)) for _ in range(2)] == [epochs[0], epochs[0]]
    assert order_of(dataset, Loader(dataset, 8, shuffle=True, seed=2)) != epochs[0]
    loader.set_epoch(1)
    assert [order_of(dataset, loader) for _ in range(2)] == epochs[1:]


def test_a_pickled_loader_goes_on_with_the_next_epoch(images: Written) -> None:
    dataset = CompiledDataset(images[0])
    loader = Loader(dataset, 8, shuffle=True)
    order_of(dataset, loader)
    copy = pickle.loads(pickle.dumps(loader))
    assert order_of(dataset, copy) == order_of(dataset, loader)


@pytest.mark.parametrize("chosen", [[3, 3, 0, 49], [-1, -50, 7], [], np.arange(49, -1, -3), range(5)])
def test_sampler_of_positions(images: Written, chosen: Any) -> None:
    dataset = CompiledDataset(images[0])
    loader = Loader(dataset, 2, sampler=chosen)
    assert order_of(dataset, loader) == [int(position) % 50 for position in chosen]
    assert len(loader) == -(-len(chosen) // 2)


def test_torch_samplers(images: Written) -> None:
    dataset = CompiledDataset(images[0], split="train")
    assert order_of(dataset, Loader(dataset, 6, sampler=SequentialSampler(dataset))) == list(range(40))
    shuffled = Loader(dataset, 6, sampler=RandomSampler(dataset, generator=torch.Generator().manual_seed(3)))
    first, second = order_of(dataset, shuffled), order_of(dataset, shuffled)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(40))
    ranks = [Loader(dataset, 6, sampler=DistributedSampler(dataset, 2, rank)) for rank in range(2)]
    assert sorted(order_of(dataset, ranks[0]) + order_of(dataset, ranks[1])) == list(range(40))


def test_a_sampler_out_of_range(images: Written) -> None:
    with pytest.raises(IndexError, match="the sampler must give positions below 10, got 3 to 10"):
        list(Loader(CompiledDataset(images[0], split="val"), 2, sampler=[3, 10]))
