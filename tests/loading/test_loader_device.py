"""Loader: batches on a device, copied by a simulated one at any later time, and datasets that are wholly there."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_device import SimulatedDevice, SimulatedError

import precompile.loading.devices.device as device_module
from precompile import CompiledDataset, LengthBatchSampler, Loader, Padded, RandomCrop, ShuffleSampler
from precompile.loading.devices.async_mover import AsyncMover

pytestmark = pytest.mark.filterwarnings("error")

Written = tuple[Path, list[dict[str, Any]]]


def parts_of(batch: Any) -> list[Any]:
    parts = list(batch.values()) if isinstance(batch, dict) else [batch]
    return [item for part in parts for item in (part if isinstance(part, Padded) else (part,))]


@pytest.mark.parametrize("written", ["images", "spectrograms"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), threads=st.integers(1, 3), prefetch=st.integers(0, 4))
def test_batches_are_right_whenever_the_device_copies(
    written: str, request: pytest.FixtureRequest, seed: int, threads: int, prefetch: int
) -> None:
    schedule = random.Random(seed)
    device = SimulatedDevice(schedule)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_module, "mover_for", lambda wanted: AsyncMover(device))
        dataset = CompiledDataset(request.getfixturevalue(written)[0])
        options: dict[str, Any] = {"shuffle": True, "batch_size": 6}
        if written == "images":
            options["windows"] = RandomCrop(5)
        loader = Loader(dataset, **options, threads=threads, prefetch=prefetch, device="anything")
    plain = Loader(dataset, **options, prefetch=0)
    for _ in range(2):
        kept: list[tuple[list[Any], Any]] = []
        for batch, expected in zip(loader, plain, strict=True):
            for part, wanted in zip(parts_of(batch), parts_of(expected), strict=True):
                if isinstance(part, torch.Tensor):
                    assert part.shape == wanted.shape
                    kept.append((device.read(part), wanted.clone()))
                else:
                    assert part == wanted
            del batch, part
            device.run_some(schedule.randrange(6))
        device.run_all()
        assert all(torch.equal(found[0], wanted) for found, wanted in kept)


def test_an_error_of_the_device_reaches_the_consumer(images: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimulatedDevice(random.Random(0))
    monkeypatch.setattr(device_module, "mover_for", lambda wanted: AsyncMover(device))
    loader = Loader(CompiledDataset(images[0], fields="image"), 5, device="anything")
    device.fails_in = 2
    with pytest.raises(SimulatedError, match="out of memory on the device"):
        list(loader)
    device.fails_in = None
    assert len(list(loader)) == 10


def test_the_cpu_is_a_device(images: Written) -> None:
    dataset = CompiledDataset(images[0], fields="image")
    for batch, expected in zip(Loader(dataset, 8, device="cpu"), Loader(dataset, 8), strict=True):
        assert torch.equal(batch, expected)


def test_a_wrong_device_is_refused_at_once(images: Written) -> None:
    with pytest.raises(ValueError, match="device must be one that torch knows"):
        Loader(CompiledDataset(images[0]), 8, device="gpu7")


@pytest.mark.parametrize("written", ["images", "spectrograms"])
def test_a_dataset_on_a_device_is_gathered_there(written: str, request: pytest.FixtureRequest) -> None:
    dataset = CompiledDataset(request.getfixturevalue(written)[0])
    resident = dataset.to_tensors("cpu")
    for options in (
        {"batch_size": 7, "shuffle": True},
        {"sampler": [[3, -1], [4]]},
        {"batch_size": 4, "sampler": [1, 2]},
    ):
        ours, plain = Loader(resident, **options), Loader(dataset, **options)
        assert len(ours) == len(plain)
        for _ in range(2):
            for batch, expected in zip(ours, plain, strict=True):
                for part, wanted in zip(parts_of(batch), parts_of(expected), strict=True):
                    assert torch.equal(part, wanted) if isinstance(part, torch.Tensor) else part == wanted
    sampler = ShuffleSampler(resident, rank=1, world_size=2)
    assert sum(len(batch["label"]) for batch in Loader(resident, 4, sampler=sampler)) == len(dataset) // 2


def test_frames_of_a_dataset_on_a_device(spectrograms: Written) -> None:
    resident = CompiledDataset(spectrograms[0], fields="spectrogram").to_tensors("cpu")
    batches = list(Loader(resident, batch_frames=20, shuffle=True))
    assert sum(len(batch.lengths) for batch in batches) == 30
    assert all(batch.data.shape[0] * batch.data.shape[-1] <= 20 for batch in batches)
    sampler = LengthBatchSampler(resident.dataset, batch_size=4)
    assert sum(len(batch.lengths) for batch in Loader(resident, sampler=sampler)) == 30


def test_what_does_not_go_with_a_dataset_on_a_device(images: Written) -> None:
    resident = CompiledDataset(images[0]).to_tensors("cpu")
    with pytest.raises(ValueError, match="on cpu gives its samples as they are there: it takes no windows and no anot"):
        Loader(resident, 4, windows=RandomCrop(4), device="cuda")
    assert len(list(Loader(resident, 25, device="cpu"))) == 2
    with pytest.raises(IndexError, match="the sampler must give positions below 50, got 50 to 50"):
        list(Loader(resident, 4, sampler=np.array([50])))
