"""CompiledDataset: what a sample is, which samples there are, and the messages of wrong calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from precompile import CompiledDataset
from precompile.errors import DatasetNotFoundError
from precompile.format.schema import FieldSpec

pytestmark = pytest.mark.filterwarnings("error")

Written = tuple[Path, list[dict[str, Any]]]


def same(sample: dict[str, Any], expected: dict[str, Any]) -> bool:
    return sample.keys() == expected.keys() and all(np.array_equal(sample[name], expected[name]) for name in expected)


def test_fields_none_is_a_dict_of_all_fields(images: Written) -> None:
    root, samples = images
    dataset = CompiledDataset(root)
    assert len(dataset) == 50
    for index, expected in enumerate(samples):
        assert list(dataset[index]) == ["image", "label", "note"]
        assert same(dataset[index], expected)
    assert type(dataset[1]["label"]) is int
    assert type(dataset[1]["note"]) is str


def test_fields_as_a_name_is_the_value_alone(images: Written) -> None:
    root, samples = images
    assert np.array_equal(CompiledDataset(root, fields="image")[7], samples[7]["image"])
    assert CompiledDataset(root, fields="label")[7] == samples[7]["label"]
    assert CompiledDataset(root, fields="note")[7] == samples[7]["note"]


@pytest.mark.parametrize("names", [("image", "label"), ["label", "image"], ("note",)])
def test_fields_as_a_sequence_is_a_tuple_in_that_order(images: Written, names: Any) -> None:
    root, samples = images
    sample = CompiledDataset(root, fields=names)[9]
    assert type(sample) is tuple
    assert len(sample) == len(names)
    assert all(np.array_equal(value, samples[9][name]) for value, name in zip(sample, names))


def test_a_split_is_a_run_of_the_samples(images: Written) -> None:
    root, samples = images
    train, val = CompiledDataset(root, split="train"), CompiledDataset(root, split="val")
    assert (len(train), len(val)) == (40, 10)
    assert all(same(val[index], samples[40 + index]) for index in range(10))
    assert same(train[-1], samples[39])
    assert list(val.keys) == [f"{number}.raw" for number in range(40, 50)]
    assert val.targets.tolist() == [sample["label"] for sample in samples[40:]]
    assert list(val.column("note")) == [sample["note"] for sample in samples[40:]]


def test_facts_about_the_dataset(images: Written) -> None:
    dataset = CompiledDataset(images[0])
    assert dataset.classes == ["a", "b", "c"]
    assert dataset.class_to_idx == {"a": 0, "b": 1, "c": 2}
    assert dataset.targets.dtype == np.int64
    assert dataset.fingerprint == dataset.manifest.fingerprint
    assert dataset.schema["image"].shape == (3, 8, 8)


def test_a_dataset_without_class_names(spectrograms: Written) -> None:
    dataset = CompiledDataset(spectrograms[0])
    assert (dataset.classes, dataset.class_to_idx) == ([], {})


def test_the_first_array_field_is_transformed(images: Written) -> None:
    root, samples = images
    dataset = CompiledDataset(root, fields=("label", "image"), transform=lambda image: image.float() / 2)
    label, image = dataset[3]
    assert label == samples[3]["label"]
    assert image.dtype == torch.float32
    assert np.array_equal(image * 2, samples[3]["image"])


def test_a_mapping_transforms_the_named_fields(images: Written) -> None:
    root, samples = images
    sample = CompiledDataset(root, transform={"label": lambda label: label + 100, "note": str.upper})[3]
    assert sample["label"] == samples[3]["label"] + 100
    assert sample["note"] == samples[3]["note"].upper()
    assert np.array_equal(sample["image"], samples[3]["image"])


@pytest.mark.parametrize("index", [50, -51, 10**9])
def test_an_index_out_of_range(images: Written, index: int) -> None:
    with pytest.raises(IndexError, match=f"index {index} is out of range for 50 samples"):
        CompiledDataset(images[0])[index]


def test_numpy_and_negative_indices(images: Written) -> None:
    root, samples = images
    dataset = CompiledDataset(root)
    assert same(dataset[np.int64(4)], samples[4])
    assert same(dataset[-50], samples[0])
    assert len(list(itertools.islice(dataset, 100))) == 50


def test_messages_of_wrong_arguments(images: Written, tmp_path: Path) -> None:
    root = images[0]
    with pytest.raises(ValueError, match="no field 'pixels'; choose from image, label, note"):
        CompiledDataset(root, fields=("image", "pixels"))
    with pytest.raises(ValueError, match="split must be one of train, val, got 'test'"):
        CompiledDataset(root, split="test")
    with pytest.raises(ValueError, match="transform must name fields among image, got label"):
        CompiledDataset(root, fields="image", transform={"label": int})
    with pytest.raises(ValueError, match="no column 'image'; choose from label, note"):
        CompiledDataset(root).column("image")
    with pytest.raises(DatasetNotFoundError, match="no generation 9; there are: 1"):
        CompiledDataset(root, generation=9)
    with pytest.raises(DatasetNotFoundError, match="no such directory; run `precompile build"):
        CompiledDataset(tmp_path / "nowhere")


def test_targets_need_labels(tmp_path: Path, write_dataset: Callable[..., Any]) -> None:
    write_dataset(tmp_path / "x.pc", [FieldSpec("image", "uint8", (1, 2, 2))], 3)
    with pytest.raises(ValueError, match="no column 'label'; choose from none"):
        _ = CompiledDataset(tmp_path / "x.pc").targets
