"""Datasets in the memory of a device: every batch is what the dataset on disk gives."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precompile import CompiledDataset, machine
from precompile.errors import NoRoomError
from precompile.format.schema import TEXT, FieldSpec
from precompile.loading.devices import resident
from precompile.loading.devices.leaves import map_leaves
from precompile.loading.devices.resident import ResidentDataset, to_tensors
from precompile.loading.reading.collate import Padded

COUNT = 37
FIXED = (
    FieldSpec("image", "uint8", (3, 5, 7)),
    FieldSpec("photo", "uint8", (3, 6, 4), "raw_hwc"),
    FieldSpec("depth", "uint16", (2, 3)),
    FieldSpec("label", "int64", ()),
    FieldSpec("flag", "uint8", ()),
    FieldSpec("duration_seconds", "float32", ()),
    FieldSpec("text", TEXT, ()),
)
VARYING = (
    FieldSpec("spectrogram", "float16", (4, None)),
    FieldSpec("picture", "uint8", (3, None, None), "raw_hwc"),
    FieldSpec("depth", "uint16", (None,)),
    FieldSpec("mean", "float32", (4,)),
    FieldSpec("label", "int32", ()),
    FieldSpec("text", TEXT, ()),
)
FORMS: list[Any] = [
    None,
    "image",
    ("label", "photo"),
    ("text", "label"),
    ("depth",),
    ["flag", "duration_seconds", "text"],
]
VARYING_FORMS: list[Any] = [None, "spectrogram", ("picture", "label"), "depth", ("mean",)]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Path]:
    write = request.getfixturevalue("write_dataset")
    folder = tmp_path_factory.mktemp("resident")
    for name, fields in (("fixed", FIXED), ("varying", VARYING)):
        write(folder / name, fields, COUNT, splits={"train": 30, "val": 7}, num_shards=3, classes=("a", "b", "c"))
    return {name: folder / name for name in ("fixed", "varying")}


def same(got: Any, wanted: Any) -> bool:
    """Equal in form, dtype, shape and content. (torch cannot compare all dtypes.)"""
    if isinstance(wanted, torch.Tensor):
        return got.dtype == wanted.dtype and np.array_equal(got.numpy(), wanted.numpy())
    if isinstance(wanted, dict):
        return list(got) == list(wanted) and all(same(got[name], value) for name, value in wanted.items())
    if isinstance(wanted, tuple):
        return type(got) is type(wanted) and len(got) == len(wanted) and all(map(same, got, wanted))
    return type(got) is type(wanted) and got == wanted


def expected_batch(dataset: CompiledDataset, positions: np.ndarray) -> Any:
    """What the dataset collates, with numbers in the dtype of their column."""
    values = map_leaves(dataset.collate([dataset[index] for index in positions.tolist()]), torch.Tensor, torch.clone)
    names = dataset.field_names
    parts = [values] if isinstance(dataset.fields, str) else list(values.values()) if dataset.fields is None else values
    typed = {
        name: part.to(getattr(torch, dataset.schema[name].dtype)) if isinstance(part, torch.Tensor) else part
        for name, part in zip(names, parts)
    }
    return dataset.arrange(typed)


@pytest.mark.parametrize(
    ("root", "fields"),
    [*[("fixed", form) for form in FORMS], *[("varying", form) for form in VARYING_FORMS]],
)
@pytest.mark.parametrize("split", [None, "val"])
@pytest.mark.parametrize("chunk_bytes", [1, 600, 1 << 20])
def test_every_batch_is_that_of_the_dataset(
    roots: dict[str, Path], root: str, fields: Any, split: str | None, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "_CHUNK_BYTES", chunk_bytes)
    dataset = CompiledDataset(roots[root], fields=fields, split=split)
    there = to_tensors(dataset, "cpu")
    assert len(there) == len(dataset)
    rng = np.random.default_rng(0)
    for size in (1, 2, 5, 2 * COUNT):
        positions = rng.integers(0, len(dataset), size)
        assert same(there.batch(positions), expected_batch(dataset, positions))
        assert same(there.collate(there.__getitems__(positions.tolist())), expected_batch(dataset, positions))
    assert all(same(there[index], dataset[index]) for index in range(-len(dataset), len(dataset)))


@settings(max_examples=60, deadline=None)
@given(positions=st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=12))
def test_padded_batches_are_cut_to_their_longest(roots: dict[str, Path], positions: list[int]) -> None:
    dataset = CompiledDataset(roots["varying"], fields="picture")
    batch = to_tensors(dataset, "cpu").batch(np.array(positions))
    assert type(batch) is Padded
    sizes = dataset.lengths()[positions]
    assert batch.data.shape == (len(positions), 3, *sizes.max(axis=0))
    assert np.array_equal(batch.lengths, sizes)
    assert batch.data.is_contiguous(memory_format=torch.channels_last)


def test_channels_last_stays_so(roots: dict[str, Path]) -> None:
    there = to_tensors(CompiledDataset(roots["fixed"], fields="photo"), "cpu")
    assert there.batch(np.arange(4)).is_contiguous(memory_format=torch.channels_last)
    assert there.collate(there.__getitems__([3, 4])).is_contiguous(memory_format=torch.channels_last)
    pictures = to_tensors(CompiledDataset(roots["varying"], fields="picture"), "cpu")
    assert pictures.collate([pictures[1], pictures[2]]).data.is_contiguous(memory_format=torch.channels_last)
    assert there[0].stride() == CompiledDataset(roots["fixed"], fields="photo")[0].stride()


@pytest.mark.parametrize("root", ["fixed", "varying"])
def test_batches_and_samples_are_memory_of_their_own(roots: dict[str, Path], root: str) -> None:
    there = to_tensors(CompiledDataset(roots[root]), "cpu")
    before = expected_batch(there.dataset, np.arange(COUNT))
    for values in (there.batch(np.arange(9)), there[3], there.collate([there[1], there[2]])):
        map_leaves(values, torch.Tensor, lambda tensor: tensor.fill_(1))
    assert same(there.batch(np.arange(COUNT)), before)


def test_a_transform_is_applied_once(roots: dict[str, Path]) -> None:
    calls: list[int] = []

    def transform(image: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return image.float() / 2 + len(calls)

    there = to_tensors(CompiledDataset(roots["fixed"], fields=("image", "label"), transform=transform), "cpu")
    num_calls = len(calls)
    first, again = (there.batch(np.arange(COUNT))[0] for _ in range(2))
    assert len(calls) == num_calls
    assert first.dtype == torch.float32
    assert torch.equal(first, again)


def test_transforms_of_several_fields(roots: dict[str, Path]) -> None:
    transform: dict[str, Callable[[Any], Any]] = {
        "spectrogram": lambda value: value.float().mean(1),
        "label": lambda label: label + 0.5,
        "text": len,
    }
    dataset = CompiledDataset(roots["varying"], fields=("spectrogram", "label", "text"), transform=transform)
    there = to_tensors(dataset, "cpu")
    positions = np.array([5, 1, 30])
    assert same(there.batch(positions), dataset.collate(dataset.__getitems__(positions.tolist())))
    assert same(there[4], dataset[4])


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_a_transform_that_gives_several_shapes_is_refused(
    roots: dict[str, Path], chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "_CHUNK_BYTES", chunk_bytes)
    dataset = CompiledDataset(roots["varying"], fields="spectrogram", transform=lambda value: value * 2)
    with pytest.raises(ValueError, match=r"as of the first sample, got|must have one shape, got"):
        to_tensors(dataset, "cpu")


def test_a_transform_that_gives_no_tensor_is_refused(roots: dict[str, Path]) -> None:
    dataset = CompiledDataset(roots["fixed"], fields="image", transform=lambda image: {"a": image})
    with pytest.raises(
        TypeError, match="expected tensors, numbers or text to hold on a device, got dict for field image"
    ):
        to_tensors(dataset, "cpu")


def test_what_does_not_fit_is_refused_before_it_is_read(
    roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = CompiledDataset(roots["fixed"], fields=("image", "label"))
    need = COUNT * (3 * 5 * 7 + 8)
    limits = machine.MemoryLimits(1 << 30, None, None, available_bytes=need)
    monkeypatch.setattr(machine, "memory", lambda: limits)
    assert len(to_tensors(dataset, "cpu")) == COUNT
    limits = machine.MemoryLimits(1 << 30, None, None, available_bytes=need - 1)
    with pytest.raises(
        NoRoomError, match=r"fixed: 37 samples need 0 MB on cpu, 0 MB are free; give the dataset itself"
    ):
        to_tensors(dataset, "cpu")


def test_varying_shapes_need_the_largest_for_each(roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = CompiledDataset(roots["varying"], fields="spectrogram")
    need = COUNT * (4 * int(dataset.lengths().max()) * 2 + 8)
    for available, fits in ((need, True), (need - 1, False)):
        limits = machine.MemoryLimits(1 << 30, None, None, available_bytes=available)
        monkeypatch.setattr(machine, "memory", lambda limits=limits: limits)
        if fits:
            to_tensors(dataset, "cpu")
        else:
            with pytest.raises(NoRoomError):
                to_tensors(dataset, "cpu")


@pytest.mark.parametrize("index", [COUNT, -COUNT - 1])
def test_an_index_outside_is_refused(roots: dict[str, Path], index: int) -> None:
    there = to_tensors(CompiledDataset(roots["fixed"], fields="label"), "cpu")
    with pytest.raises(IndexError, match=f"index {index} is out of range for {COUNT} samples"):
        there[index]


@pytest.mark.parametrize("positions", [[0, COUNT], [-1, 3]])
def test_positions_outside_are_refused(roots: dict[str, Path], positions: list[int]) -> None:
    there = to_tensors(CompiledDataset(roots["fixed"], fields="label"), "cpu")
    with pytest.raises(IndexError, match=rf"positions must be from 0 to 36, got {min(positions)} to {max(positions)}"):
        there.batch(np.array(positions))


def test_a_device_is_checked_first(roots: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="got device='gpu'"):
        to_tensors(CompiledDataset(roots["fixed"]), "gpu")


def test_in_a_dataloader(roots: dict[str, Path]) -> None:
    dataset = CompiledDataset(roots["varying"])
    there = to_tensors(dataset, "cpu")
    batches = list(torch.utils.data.DataLoader(there, 10, collate_fn=there.collate))
    assert len(batches) == 4
    assert all(same(batch, expected_batch(dataset, np.arange(start, min(start + 10, COUNT))))
               for start, batch in zip(range(0, COUNT, 10), batches))  # fmt: skip


def test_what_it_was_made_of_is_named(roots: dict[str, Path]) -> None:
    there = to_tensors(CompiledDataset(roots["fixed"], fields=("image", "label"), split="val"), "cpu")
    assert there.fields == ("image", "label")
    assert there.dataset.classes == ["a", "b", "c"]
    assert repr(there).startswith("ResidentDataset(on cpu, CompiledDataset(")
    assert "7 samples of image, label" in repr(there)


def test_it_ends_with_its_last_reference(roots: dict[str, Path]) -> None:
    there: ResidentDataset | None = to_tensors(CompiledDataset(roots["fixed"]), "cpu")
    ended = weakref.ref(there)
    batch = there.batch(np.arange(3))
    gc.collect()
    del there
    assert ended() is None
    assert batch["image"].shape == (3, 3, 5, 7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("root", ["fixed", "varying"])
def test_on_a_gpu(roots: dict[str, Path], root: str) -> None:
    dataset = CompiledDataset(roots[root])
    there = to_tensors(dataset, "cuda")
    positions = np.random.default_rng(0).integers(0, COUNT, 9)
    batch = there.batch(positions)
    map_leaves(batch, torch.Tensor, lambda tensor: pytest.fail("not on the GPU") if not tensor.is_cuda else None)
    assert same(map_leaves(batch, torch.Tensor, torch.Tensor.cpu), expected_batch(dataset, positions))
