"""RowGather and BoxCopies: one call equals a copy piece by piece, for every size of a row and every platform."""

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
from precompile.loading.reading.buffers import aligned_buffer
from precompile.loading.reading.gather import BoxCopies, RowGather, Strided

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


def gathered(stored: Stored, name: str, numbers: np.ndarray, row_bytes: int) -> np.ndarray:
    buffer = aligned_buffer(row_bytes * len(numbers) + 64)
    RowGather(stored.shards, row_bytes).plan(stored.fields(numbers)[name].places, buffer)()
    assert not buffer[row_bytes * len(numbers) :].any(), "wrote beyond the rows"
    return buffer[: row_bytes * len(numbers)].reshape(len(numbers), -1)


def stored_bytes(sample: np.ndarray, spec: FieldSpec) -> np.ndarray:
    in_memory = sample.transpose(1, 2, 0) if spec.encoding == "raw_hwc" else sample
    return np.ascontiguousarray(in_memory).reshape(-1).view(np.uint8)


@pytest.mark.parametrize("one_range", [True, False])
@pytest.mark.parametrize("store", ["flat", "lmdb"])
@pytest.mark.parametrize("row_bytes", FIELDS)
def test_rows_equal_the_samples(
    tmp_path: Path, write_dataset: Callable[..., Any], row_bytes: int, store: str, one_range: bool,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if not one_range:
        request.getfixturevalue("without_one_range")
    fields = [FieldSpec("before", "uint8", (70,)), FIELDS[row_bytes], FieldSpec("after", "int16", (5,))]
    samples = write_dataset(tmp_path, fields, 17, num_shards=3, store=store)
    stored = Stored(tmp_path)
    assert (stored.shards.window is not None) is one_range
    numbers = np.random.default_rng(0).integers(0, 17, 40)
    for spec, num_bytes in zip(fields, (70, row_bytes, 10)):
        expected = np.stack([stored_bytes(samples[number][spec.name], spec) for number in numbers])
        assert np.array_equal(gathered(stored, spec.name, numbers, num_bytes), expected)


def test_a_loader_without_one_range(images: tuple[Path, Any], request: pytest.FixtureRequest) -> None:
    expected = list(Loader(CompiledDataset(images[0], fields="image"), 7, shuffle=True))
    request.getfixturevalue("without_one_range")
    dataset = CompiledDataset(images[0], fields="image")
    assert dataset.stored.shards.window is None
    assert all(torch.equal(a, b) for a, b in zip(Loader(dataset, 7, shuffle=True), expected, strict=True))


@pytest.mark.parametrize("alignment", [1, 2, 4, 8, 64])
def test_rows_at_any_place(images: tuple[Path, Any], alignment: int) -> None:
    stored = Stored(images[0])
    first = stored.shards.view(0, int(stored.shards.sizes[0]))
    places = np.arange(0, len(first) - 40, alignment)
    out = aligned_buffer(40 * len(places))
    RowGather(stored.shards, 40, alignment=alignment).plan(places, out)()
    assert np.array_equal(out.reshape(-1, 40), np.stack([first[place : place + 40] for place in places]))


@pytest.mark.parametrize("one_range", [True, False])
def test_boxes_and_their_padding(images: tuple[Path, Any], request: pytest.FixtureRequest, one_range: bool) -> None:
    if not one_range:
        request.getfixturevalue("without_one_range")
    stored = Stored(images[0])
    start = int(stored.shards.starts[1])
    out = aligned_buffer(100)
    out[:] = 255
    copies = BoxCopies(stored.shards, out)
    copies.copy(start + 70, Strided([3, 5], [16, 1]), 10, Strided([3, 5], [8, 1]))
    copies.zero(50, Strided([2, 3], [10, 1]))
    copies.zero(0, Strided([0, 3], [10, 1]))
    assert (out == 255).all(), "planned, not run"
    copies.run()
    expected = np.full(100, 255, np.uint8)
    for row in range(3):
        expected[10 + 8 * row : 15 + 8 * row] = stored.shards.view(start + 70 + 16 * row, 5)
    expected[50:53] = expected[60:63] = 0
    assert np.array_equal(out, expected)


def test_places_outside_are_refused(images: tuple[Path, Any]) -> None:
    stored = Stored(images[0])
    with pytest.raises(IndexError, match="sample numbers must be from 0 to 49, got -1 to 50"):
        stored.places(np.array([-1, 50]))
