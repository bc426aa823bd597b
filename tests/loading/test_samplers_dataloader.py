"""The samplers in torch's own DataLoader: exactly their order, and a state from what training consumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from precompile import BlockShuffleSampler, CompiledDataset, LengthBatchSampler, ShuffleSampler

pytestmark = pytest.mark.filterwarnings("error")

Written = tuple[Path, list[dict[str, Any]]]


POSITIONS = list(range(30))
"""A dataset whose samples are their positions."""


@pytest.fixture
def dataset(spectrograms: Written) -> CompiledDataset:
    return CompiledDataset(spectrograms[0])


def samplers(dataset: CompiledDataset) -> list[Any]:
    share = {"rank": 1, "world_size": 2, "seed": 6}
    return [ShuffleSampler(dataset, **share), BlockShuffleSampler(dataset, run_bytes=256, window_runs=3, **share)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataloader_gives_the_samplers_order(dataset: CompiledDataset, num_workers: int) -> None:
    for sampler, alone in zip(samplers(dataset), samplers(dataset)):
        loader = DataLoader(POSITIONS, 4, sampler=sampler, num_workers=num_workers)
        assert len(loader) == 4
        for _ in range(2):
            assert [position for batch in loader for position in batch.tolist()] == list(alone)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataloader_gives_the_batches(dataset: CompiledDataset, num_workers: int) -> None:
    options: dict[str, Any] = {"batch_frames": 20, "window_batches": 3, "rank": 0, "world_size": 2}
    sampler, alone = LengthBatchSampler(dataset, **options), LengthBatchSampler(dataset, **options)
    loader = DataLoader(POSITIONS, batch_sampler=sampler, num_workers=num_workers)
    for _ in range(2):
        assert len(loader) == len(alone)
        assert [batch.tolist() for batch in loader] == list(alone)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumed_in_the_middle_of_an_epoch(dataset: CompiledDataset, num_workers: int) -> None:
    for make in (lambda: samplers(dataset)[0], lambda: samplers(dataset)[1]):
        expected = list(make())
        first = make()
        batches = iter(DataLoader(POSITIONS, 4, sampler=first, num_workers=num_workers))
        consumed = [position for _ in range(2) for position in next(batches).tolist()]
        state = first.state_dict() if num_workers == 0 else first.state_dict(consumed=len(consumed))
        second = make()
        second.load_state_dict(json.loads(json.dumps(state)))
        rest = [position for batch in DataLoader(POSITIONS, 4, sampler=second) for position in batch.tolist()]
        assert consumed + rest == expected


def test_batches_resumed_in_the_middle_of_an_epoch(dataset: CompiledDataset) -> None:
    expected = list(LengthBatchSampler(dataset, batch_size=4))
    first = LengthBatchSampler(dataset, batch_size=4)
    batches = iter(DataLoader(POSITIONS, batch_sampler=first))
    consumed = [next(batches).tolist() for _ in range(3)]
    second = LengthBatchSampler(dataset, batch_size=4)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert len(second) == len(expected) - 3
    assert consumed + [batch.tolist() for batch in DataLoader(POSITIONS, batch_sampler=second)] == expected


def test_batches_of_varying_samples(spectrograms: Written) -> None:
    root, samples = spectrograms
    dataset = CompiledDataset(root, fields=("spectrogram", "label"))
    loader = DataLoader(dataset, batch_sampler=LengthBatchSampler(dataset, batch_frames=40), collate_fn=dataset.collate)
    frames = []
    for padded, labels in loader:
        assert len(labels) == padded.data.shape[0]
        assert padded.data.shape[0] * padded.data.shape[2] <= 40
        frames += padded.lengths.tolist()
    assert sorted(frames) == sorted(sample["spectrogram"].shape[1] for sample in samples)
