"""Batches of samples of varying shape: every sample whole, padding behind it, for every layout and rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from written import write

from precompile import CompiledDataset, Loader, Pad, Padded
from precompile.format.schema import FieldSpec

pytestmark = pytest.mark.filterwarnings("error")

FIELDS = {
    "spectrogram": FieldSpec("data", "float16", (4, None)),
    "frames first": FieldSpec("data", "float32", (None, 3)),
    "waveform": FieldSpec("data", "int16", (None,)),
    "image": FieldSpec("data", "uint8", (3, None, None)),
    "raw_hwc": FieldSpec("data", "uint8", (3, None, None), "raw_hwc"),
    "bmp": FieldSpec("data", "uint8", (3, None, None), "bmp"),
    "bmp of one height": FieldSpec("data", "uint8", (1, 5, None), "bmp"),
    "all axes": FieldSpec("data", "float64", (None, None, None)),
}
COMPANIONS = [FieldSpec("thumb", "uint8", (3, 2, 4), "raw_hwc"), FieldSpec("label", "int64", ())]


@pytest.fixture(scope="module", params=FIELDS)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CompiledDataset:
    """30 samples of a varying field, with a fixed one and a column behind it."""
    root = tmp_path_factory.mktemp("varying") / "x.pc"
    write(root, [FIELDS[request.param], *COMPANIONS], 30, num_shards=2, store="flat")
    return CompiledDataset(root)


def check(batch: Any, dataset: CompiledDataset, indices: list[int], pad: Pad) -> None:
    samples = [dataset[index] for index in indices]
    spec = dataset.schema["data"]
    data, lengths = batch["data"]
    varying = list(spec.varying_axes)
    shapes = np.array([sample["data"].shape for sample in samples])
    expected = shapes[:, varying][:, 0] if len(varying) == 1 else shapes[:, varying]
    assert lengths.tolist() == expected.tolist()
    largest = shapes.max(axis=0)
    largest[varying] = -(-largest[varying] // pad.multiple_of) * pad.multiple_of
    assert list(data.shape) == [len(indices), *largest.tolist()]
    for row, sample in zip(data, samples):
        inside = tuple(slice(size) for size in sample["data"].shape)
        assert torch.equal(row[inside], sample["data"])
        outside = torch.ones(row.shape, dtype=torch.bool)
        outside[inside] = False
        assert (row[outside] == pad.value).all()
    assert torch.equal(batch["thumb"], torch.stack([sample["thumb"] for sample in samples]))
    assert batch["label"].tolist() == [sample["label"] for sample in samples]


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_equals_direct_reads(dataset: CompiledDataset, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    order = data.draw(st.lists(st.integers(0, 29), min_size=sum(sizes), max_size=sum(sizes)))
    batches = [order[sum(sizes[:n]) : sum(sizes[: n + 1])] for n in range(len(sizes))]
    for _ in range(2):  # the second time into buffers that were used
        loader = Loader(dataset, sampler=batches, prefetch=data.draw(st.integers(0, 3)))
        for batch, indices in zip(loader, batches, strict=True):
            check(batch, dataset, indices, Pad())


@pytest.mark.parametrize("pad", [Pad(multiple_of=8), Pad(7), Pad(value=3, multiple_of=5)], ids=str)
def test_padding_by_choice(dataset: CompiledDataset, pad: Pad) -> None:
    if dataset.schema["data"].encoding == "bmp" and pad != Pad():
        with pytest.raises(ValueError, match="Pad is for fields of encoding raw or raw_hwc, got data of encoding bmp"):
            Loader(dataset, 4, collate=pad)
        return
    for start, batch in zip(range(0, 30, 4), Loader(dataset, 4, collate=pad), strict=True):
        check(batch, dataset, list(range(start, min(start + 4, 30))), pad)


def test_the_layout_is_that_of_collate(dataset: CompiledDataset) -> None:
    loaded = next(iter(Loader(dataset, 9)))
    collated = dataset.collate([dataset[index] for index in range(9)])
    assert loaded["data"].data.stride() == collated["data"].data.stride()
    assert torch.equal(loaded["data"].data, collated["data"].data)
    assert torch.equal(loaded["data"].lengths, collated["data"].lengths)


def test_samples_of_one_size_are_whole_rows(tmp_path: Path) -> None:
    samples = write(tmp_path / "x.pc", [FIELDS["spectrogram"]], 40)
    dataset = CompiledDataset(tmp_path / "x.pc", fields="data")
    same = [index for index, sample in enumerate(samples) if sample["data"].shape == samples[0]["data"].shape]
    assert len(same) > 1
    (batch,) = Loader(dataset, sampler=[same])
    assert torch.equal(batch.data, torch.stack([dataset[index] for index in same]))
    assert batch.lengths.tolist() == [samples[0]["data"].shape[1]] * len(same)


def test_the_mask_is_true_where_a_sample_is() -> None:
    padded = Padded(torch.zeros(3, 80, 5), torch.tensor([5, 1, 3]))
    assert padded.mask().int().tolist() == [[1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert torch.equal(Padded(torch.zeros(3, 5, 80), padded.lengths).mask(1), padded.mask())
    image = Padded(torch.zeros(2, 3, 2, 3), torch.tensor([[2, 1], [1, 3]]))
    assert image.mask().int().tolist() == [[[1, 0, 0], [1, 0, 0]], [[1, 1, 1], [0, 0, 0]]]
    for axes in ((3,), (1, 2, 3), (0, 1), (2, 4)):
        with pytest.raises(ValueError, match=r"this batch varies along 2 of the axes 1 to 3, got axes="):
            image.mask(*axes)
    with pytest.raises(ValueError, match=r"lengths are larger than the sizes \[4\] of axes \[2\]"):
        Padded(torch.zeros(2, 5, 4), torch.tensor([5, 1])).mask()


@pytest.mark.parametrize("options", [{"multiple_of": 0}, {"multiple_of": 2.0}, {"value": "x"}, {"value": None}])
def test_wrong_pads(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} must be .*, got {name}="):
        Pad(**options)


def test_lengths_of_a_dataset(dataset: CompiledDataset) -> None:
    found = dataset.lengths()
    varying = list(dataset.schema["data"].varying_axes)
    for index in range(30):
        sizes = [dataset[index]["data"].shape[axis] for axis in varying]
        assert found[index].tolist() == (sizes if len(sizes) > 1 else sizes[0])
    with pytest.raises(ValueError, match="expected a field whose shape varies, got 'thumb'; choose from data"):
        dataset.lengths("thumb")
