"""FixedGather: one call equals a row-by-row copy, for every size of a row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import precompile.format.stored as stored_module
from precompile import CompiledDataset, Loader
from precompile.format.schema import FieldSpec
from precompile.format.shards import ShardMap
from precompile.format.stored import Stored
from precompile.loading.buffers import aligned_buffer
from precompile.loading.gather import FixedGather, gather_padded

FIELDS = {
    1: FieldSpec("data", "uint8", (1,)),
    2: FieldSpec("data", "uint8", (2,)),
    3: FieldSpec("data", "uint8", (1, 1, 3), "raw_hwc"),
    5: FieldSpec("data", "int8", (5,)),
    6: FieldSpec("data", "float16", (3,)),
    12: FieldSpec("data", "float32", (3, 1)),
    24: FieldSpec("data", "float64", (3,)),
    64: FieldSpec("data", "int64", (2, 4)),
    147: FieldSpec("data", "uint8", (3, 7, 7), "raw_hwc"),
    33_003: FieldSpec("data", "uint8", (3, 11_001)),
    150_528: FieldSpec("data", "uint8", (3, 224, 224)),
}


@pytest.fixture
def without_one_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform that cannot map at chosen addresses."""
    monkeypatch.setattr(stored_module, "ShardMap", lambda paths, sizes: ShardMap(paths, sizes, one_range=False))


def gathered(stored: Stored, name: str, numbers: np.ndarray) -> torch.Tensor:
    gather = FixedGather(stored, stored.schema[name])
    buffer = aligned_buffer(gather.row_bytes * len(numbers) + 64)
    gather.fill(stored.places(numbers), buffer)
    assert not buffer[gather.row_bytes * len(numbers) :].any(), "wrote beyond the rows"
    return gather.batch(buffer, 0, len(numbers))


@pytest.mark.parametrize("store", ["flat", "lmdb"])
@pytest.mark.parametrize("row_bytes", FIELDS)
def test_equals_the_samples(tmp_path: Path, write_dataset: Callable[..., Any], row_bytes: int, store: str) -> None:
    fields = [FieldSpec("before", "uint8", (70,)), FIELDS[row_bytes], FieldSpec("after", "int16", (5,))]
    samples = write_dataset(tmp_path, fields, 17, num_shards=3, store=store)
    stored = Stored(tmp_path)
    numbers = np.random.default_rng(0).integers(0, 17, 40)
    assert FixedGather(stored, FIELDS[row_bytes]).row_bytes == row_bytes
    for name in ("before", "data", "after"):
        batch = gathered(stored, name, numbers)
        assert np.array_equal(batch, np.stack([samples[number][name] for number in numbers]))


@pytest.mark.parametrize("row_bytes", FIELDS)
@pytest.mark.usefixtures("without_one_range")
def test_without_one_range(tmp_path: Path, write_dataset: Callable[..., Any], row_bytes: int) -> None:
    samples = write_dataset(tmp_path, [FIELDS[row_bytes]], 17, num_shards=3)
    stored = Stored(tmp_path)
    assert stored.shards.window is None
    numbers = np.arange(17)[::-1]
    assert np.array_equal(gathered(stored, "data", numbers), np.stack([samples[n]["data"] for n in numbers]))


def test_a_loader_without_one_range(images: tuple[Path, Any], request: pytest.FixtureRequest) -> None:
    expected = list(Loader(CompiledDataset(images[0], fields="image"), 7, shuffle=True))
    request.getfixturevalue("without_one_range")
    dataset = CompiledDataset(images[0], fields="image")
    assert dataset.stored.shards.window is None
    assert all(torch.equal(a, b) for a, b in zip(Loader(dataset, 7, shuffle=True), expected, strict=True))


def test_some_rows_of_a_buffer(images: tuple[Path, Any]) -> None:
    root, samples = images
    stored = Stored(root)
    gather = FixedGather(stored, stored.schema["image"])
    buffer = aligned_buffer(gather.row_bytes * 50)
    gather.fill(stored.places(np.arange(50)), buffer)
    for start, stop in ((0, 1), (3, 20), (49, 50), (0, 50)):
        batch = gather.batch(buffer, start, stop)
        assert np.array_equal(batch, np.stack([sample["image"] for sample in samples[start:stop]]))
        assert batch.data_ptr() == buffer.ctypes.data + start * gather.row_bytes


def test_places_outside_are_refused(images: tuple[Path, Any]) -> None:
    stored = Stored(images[0])
    with pytest.raises(IndexError, match="sample numbers must be from 0 to 49, got -1 to 50"):
        stored.places(np.array([-1, 50]))


def test_padding_along_two_axes(tmp_path: Path, write_dataset: Callable[..., Any]) -> None:
    samples = write_dataset(tmp_path, [FieldSpec("image", "uint8", (3, None, None))], 6)
    stored = Stored(tmp_path)
    padded = gather_padded(stored, stored.schema["image"], [5, 0, 2])
    assert padded.data.shape == (3, 3, *padded.lengths.max(dim=0).values.tolist())
    for row, lengths, number in zip(padded.data, padded.lengths.tolist(), (5, 0, 2)):
        assert lengths == list(samples[number]["image"].shape[1:])
        assert np.array_equal(row[:, : lengths[0], : lengths[1]], samples[number]["image"])
        assert row.sum() == samples[number]["image"].sum()
