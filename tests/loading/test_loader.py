"""Loader: batches equal direct reads and have the promised form; wrong calls and transforms."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from orders import batches, epoch_order

from precompile import CompiledDataset, Loader, Pad, Padded, RandomCrop, ShuffleSampler
from precompile.format.schema import TEXT, FieldSpec

pytestmark = pytest.mark.filterwarnings("error")

Written = tuple[Path, list[dict[str, Any]]]
FIXED = {
    "raw": FieldSpec("image", "uint8", (3, 5, 7)),
    "raw_hwc": FieldSpec("image", "uint8", (3, 5, 7), "raw_hwc"),
    "bmp": FieldSpec("image", "uint8", (3, 5, 7), "bmp"),
    "float32": FieldSpec("image", "float32", (40, 3)),
    "large": FieldSpec("image", "uint8", (3, 600, 700)),
}


@pytest.mark.parametrize("store", ["flat", "lmdb"])
@pytest.mark.parametrize("form", FIXED)
@pytest.mark.parametrize("shuffle", [False, True])
def test_equals_direct_reads(
    place: Path, write_dataset: Callable[..., Any], form: str, store: str, shuffle: bool
) -> None:
    fields = [
        FIXED[form],
        FieldSpec("mask", "int16", (5, 3)),
        FieldSpec("note", TEXT, ()),
        FieldSpec("label", "int64", ()),
    ]
    write_dataset(place / "x.pc", fields, 19, num_shards=3, store=store)
    dataset = CompiledDataset(place / "x.pc")
    order = epoch_order(19, shuffle=shuffle, seed=5, epoch=0)
    loaded = list(Loader(dataset, 4, shuffle=shuffle, seed=5))
    assert [len(batch["note"]) for batch in loaded] == [4, 4, 4, 4, 3]
    for batch, members in zip(loaded, batches(order, 4)):
        expected = dataset.collate([dataset[index] for index in members.tolist()])
        assert batch.keys() == expected.keys()
        for name in ("image", "mask", "label"):
            assert batch[name].dtype == expected[name].dtype
            assert batch[name].stride() == expected[name].stride()
            assert torch.equal(batch[name], expected[name])
        assert batch["note"] == expected["note"]


@pytest.mark.parametrize(("batch_size", "drop_last", "sizes"), [
    (20, False, [20, 20, 10]), (20, True, [20, 20]), (50, True, [50]), (51, True, []), (51, False, [50]),
    (7, True, [7] * 7), (1, True, [1] * 50),
])  # fmt: skip
def test_drop_last(images: Written, batch_size: int, drop_last: bool, sizes: list[int]) -> None:
    loader = Loader(CompiledDataset(images[0], fields=("image", "label")), batch_size, drop_last=drop_last)
    assert [len(image) for image, _ in loader] == sizes
    assert len(loader) == len(sizes)


def test_forms_of_a_batch(images: Written) -> None:
    root, samples = images
    image, label = next(iter(Loader(CompiledDataset(root, fields=("image", "label"), split="val"), 10)))
    assert np.array_equal(image, np.stack([sample["image"] for sample in samples[40:]]))
    assert label.tolist() == [sample["label"] for sample in samples[40:]]
    (alone,) = Loader(CompiledDataset(root, fields="image", split="val"), 10)
    assert torch.equal(alone, image)
    (labels,) = Loader(CompiledDataset(root, fields="label", split="val"), 10)
    assert torch.equal(labels, label)
    (notes,) = Loader(CompiledDataset(root, fields="note", split="val"), 10)
    assert notes == [sample["note"] for sample in samples[40:]]


def test_a_batch_may_be_written_to(images: Written) -> None:
    root, samples = images
    loader = Loader(CompiledDataset(root, fields="image"), 50)
    for _ in range(3):
        (image,) = loader
        assert np.array_equal(image, np.stack([sample["image"] for sample in samples]))
        image.zero_()


@pytest.mark.parametrize("value", [-1, 2.0, True, "4", 0, None])
@pytest.mark.parametrize(("name", "least"), [("batch_size", 1), ("prefetch", 0), ("threads", 1), ("seed", 0)])
def test_wrong_numbers(images: Written, name: str, least: int, value: Any) -> None:
    if value == least and value is not True:
        return
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least {least}, got {name}={value!r}"):
        Loader(CompiledDataset(images[0]), **{"batch_size": 2, name: value})


def test_sampler_and_shuffle_exclude_each_other(images: Written) -> None:
    with pytest.raises(ValueError, match="sampler and shuffle exclude each other"):
        Loader(CompiledDataset(images[0]), 2, shuffle=True, sampler=[1])


def test_varying_shapes_are_padded(spectrograms: Written) -> None:
    root, samples = spectrograms
    dataset = CompiledDataset(root, fields=("spectrogram", "label"))
    seen = 0
    for padded, label in Loader(dataset, 7):
        assert isinstance(padded, Padded)
        assert padded.lengths.dtype == torch.int64
        assert padded.data.shape == (len(label), 4, int(padded.lengths.max()))
        for row, length in zip(padded.data, padded.lengths.tolist()):
            assert np.array_equal(row[:, :length], samples[seen]["spectrogram"])
            assert not row[:, length:].any()
            seen += 1
    assert seen == 30


def test_a_fixed_field_beside_a_varying_one_is_stacked(tmp_path: Path, write_dataset: Callable[..., Any]) -> None:
    fields = [
        FieldSpec("image", "uint8", (3, None, None), "raw_hwc"),
        FieldSpec("thumb", "uint8", (3, 2, 4), "raw_hwc"),
    ]
    write_dataset(tmp_path / "x.pc", fields, 5)
    dataset = CompiledDataset(tmp_path / "x.pc", fields=("thumb", "image"))
    (loaded,) = Loader(dataset, 5)
    collated = dataset.collate([dataset[index] for index in range(5)])
    for thumb, image in (loaded, collated):
        assert np.array_equal(thumb, np.stack([dataset[index][0] for index in range(5)]))
        assert image.lengths.tolist() == [list(dataset[index][1].shape[1:]) for index in range(5)]
    assert loaded[0].stride() == collated[0].stride()
    assert torch.equal(loaded[1].data, collated[1].data)


@pytest.mark.parametrize("written", ["images", "spectrograms"])
def test_transform_runs_per_sample(written: str, request: pytest.FixtureRequest) -> None:
    root, samples = request.getfixturevalue(written)
    name = "image" if written == "images" else "spectrogram"
    dataset = CompiledDataset(root, fields=(name, "label"), transform=lambda array: array.double().sum())
    sums = torch.cat([batch for batch, _ in Loader(dataset, 8)])
    assert sums.tolist() == [float(sample[name].astype(np.float64).sum()) for sample in samples]


class Unfit(Exception):
    pass


@pytest.mark.parametrize("kind", [Unfit, ValueError, KeyError])
def test_an_exception_in_a_transform_reaches_the_consumer(images: Written, kind: type[Exception]) -> None:
    def transform(image: torch.Tensor) -> torch.Tensor:
        if torch.equal(image, bad):
            raise kind("no moustache on sample 33")
        return image

    bad = CompiledDataset(images[0])[33]["image"]
    loader = Loader(CompiledDataset(images[0], fields="image", transform=transform), 10)
    for _ in range(2):
        given: Iterator[Any] = iter(loader)
        assert [len(next(given)) for _ in range(3)] == [10, 10, 10]
        with pytest.raises(kind, match="no moustache on sample 33"):
            next(given)


def test_a_subset_reads_its_own_samples(images: Written) -> None:
    dataset = CompiledDataset(images[0], fields=dataset_field(images[0]))
    outer = torch.utils.data.Subset(dataset, [9, 4, 4, 17, 30, 2])
    inner = torch.utils.data.Subset(outer, [3, 0, 5])
    for subset, members in ((outer, [9, 4, 4, 17, 30, 2]), (inner, [17, 9, 2])):
        assert len(Loader(subset, 2)) == len(members) // 2 + len(members) % 2
        found = torch.cat(list(Loader(subset, 2)))
        assert torch.equal(found, torch.stack([dataset[index] for index in members]))
    assert torch.equal(next(iter(Loader(inner, 2, sampler=[2, -3]))), torch.stack([dataset[2], dataset[17]]))
    assert len(torch.cat(list(Loader(outer, 4, shuffle=True)))) == 6


def dataset_field(root: Path) -> str:
    return CompiledDataset(root).schema.arrays[0].name


@pytest.mark.parametrize("dataset", [[1, 2, 3], None, torch.utils.data.TensorDataset(torch.zeros(3))])
def test_other_datasets_are_refused_at_once(dataset: Any) -> None:
    with pytest.raises(TypeError, match=f"must be a CompiledDataset or a Subset of one, got {type(dataset).__name__}"):
        Loader(dataset, 2)


class Halved(CompiledDataset):
    """A subclass that makes something else of a sample."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image.float() / 2, label + 1000


def test_a_subclass_that_changes_samples_is_asked(images: Written) -> None:
    dataset = Halved(images[0], fields=("image", "label"))
    for loader in (Loader(dataset, 5), torch.utils.data.DataLoader(dataset, 5, collate_fn=dataset.collate)):
        image, label = next(iter(loader))
        assert torch.equal(image, torch.stack([dataset[index][0] for index in range(5)]))
        assert label.tolist() == [dataset[index][1] for index in range(5)]
    with pytest.raises(ValueError, match=r"windows are read from memory as they are, without .* or another "):
        Loader(dataset, 5, windows=RandomCrop(4))


def test_a_subset_that_changes_samples_is_refused(images: Written) -> None:
    class Rotated(torch.utils.data.Subset[Any]):
        pass

    with pytest.raises(TypeError, match="got Rotated; a subclass may change samples"):
        Loader(Rotated(CompiledDataset(images[0]), [1, 2]), 2)


@pytest.mark.parametrize("indices", [[0.7, 1.9], [True, False], np.array([[1, 2]]), torch.tensor([True, False])])
def test_wrong_indices_of_a_subset_are_refused(images: Written, indices: Any) -> None:
    with pytest.raises(TypeError, match="the indices of a Subset must be integers in one dimension, got "):
        Loader(torch.utils.data.Subset(CompiledDataset(images[0]), indices), 2)


def test_too_large_positions_do_not_wrap_round(images: Written) -> None:
    dataset = CompiledDataset(images[0])
    with pytest.raises((IndexError, OverflowError)):
        list(Loader(dataset, 2, sampler=np.array([2**64 - 1], np.uint64)))
    with pytest.raises(IndexError, match="the Subset must have positions"):
        Loader(torch.utils.data.Subset(dataset, np.array([2**64 - 1], np.uint64)), 2)


@pytest.mark.parametrize("batches", [[[], [1]], [[1], [], [2]]])
@pytest.mark.parametrize("written", ["images", "spectrograms"])
def test_an_empty_batch_is_refused(written: str, batches: Any, request: pytest.FixtureRequest) -> None:
    dataset = CompiledDataset(request.getfixturevalue(written)[0])
    with pytest.raises(ValueError, match="the sampler must give batches of at least one position, got an empty one"):
        list(Loader(dataset, sampler=batches))


def test_samplers_that_do_not_fit(images: Written) -> None:
    dataset = CompiledDataset(images[0])
    with pytest.raises(ValueError, match="the sampler is for 49 samples, the dataset has 50"):
        Loader(dataset, 4, sampler=ShuffleSampler(49))
    with pytest.raises(ValueError, match="got batch_size=None without a sampler of batches"):
        Loader(dataset, sampler=ShuffleSampler(dataset))
    with pytest.raises(TypeError, match="got an iterator, which is empty after the first"):
        Loader(dataset, 4, sampler=iter([1, 2]))
    for options in ({"sampler": [1, 2]}, {"sampler": [[1, 2]], "batch_size": 2}, {"sampler": [0.5], "batch_size": 2}):
        with pytest.raises(TypeError, match="the sampler must give positions, or with batch_size=None batches"):
            list(Loader(dataset, **options))


def test_numbers_of_numpy_are_numbers(images: Written) -> None:
    loader = Loader(CompiledDataset(images[0]), np.int64(4), seed=np.int64(1), prefetch=np.int32(2), shuffle=True)
    loader.set_epoch(np.int64(3))
    next(iter(loader))
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 3
    plain = Loader(CompiledDataset(images[0]), 4, sampler=[1, 2, 3])
    plain.set_epoch(np.int64(3))
    assert json.loads(json.dumps(plain.state_dict())) == {"epoch": 3, "consumed": 0}


def test_labels_alone_ask_nothing_of_the_disk(images: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precompile.loading.fillings.memory.ReadAhead", lambda stored: pytest.fail("asked"))
    assert len(torch.cat(list(Loader(CompiledDataset(images[0], fields="label"), 7)))) == 50


def test_padding_that_a_field_cannot_hold(tmp_path: Path, write_dataset: Callable[..., Any]) -> None:
    write_dataset(tmp_path / "x.pc", [FieldSpec("wave", "int16", (None,))], 4)
    dataset = CompiledDataset(tmp_path / "x.pc")
    for value in (0.5, 70_000, -70_000):
        with pytest.raises(ValueError, match=f"the padding of field wave must be a value of int16, got {value}"):
            Loader(dataset, 2, collate=Pad(value))
    Loader(dataset, 2, collate=Pad(-3.0))


def test_fields_are_named_once(images: Written) -> None:
    with pytest.raises(ValueError, match="fields must name each field once, got image, image"):
        CompiledDataset(images[0], fields=("image", "image"))
