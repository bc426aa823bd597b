"""CompiledDataset: whose memory a sample is, what a copy of a dataset carries, and where a dataset may lie."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import precompile
from precompile import CompiledDataset
from precompile.format.schema import FieldSpec

pytestmark = pytest.mark.filterwarnings("error")

Written = tuple[Path, list[dict[str, Any]]]
REPOSITORY = Path(__file__).resolve().parents[2]

# Reads a dataset as the user nobody; Python itself is imported before, since it may lie in a private folder.
READ_AS_NOBODY = """
import os, sys
import numpy as np, torch
from precompile import CompiledDataset, Loader
os.setgroups([]); os.setgid(65534); os.setuid(65534)
dataset = CompiledDataset(sys.argv[1], fields="image")
loaded = torch.cat(list(Loader(dataset, 4)))
print(os.getuid(), int(sum(dataset[i].sum() for i in range(len(dataset)))), int(loaded.sum()))
"""

ENCODINGS = {
    "raw": FieldSpec("image", "uint8", (3, 5, 7)),
    "raw_hwc": FieldSpec("image", "uint8", (3, 5, 7), "raw_hwc"),
    "bmp": FieldSpec("image", "uint8", (3, 5, 7), "bmp"),
    "varying": FieldSpec("image", "uint8", (3, None, None)),
    "varying_hwc": FieldSpec("image", "uint8", (3, None, None), "raw_hwc"),
}


@pytest.mark.parametrize("store", ["flat", "lmdb"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_sample_is_yours(place: Path, write_dataset: Callable[..., Any], encoding: str, store: str) -> None:
    samples = write_dataset(place / "x.pc", [ENCODINGS[encoding]], 12, num_shards=2, store=store)
    dataset = CompiledDataset(place / "x.pc", fields="image")
    for index, expected in enumerate(samples):
        image = dataset[index]
        assert np.array_equal(image, expected["image"])
        assert image.untyped_storage().nbytes() == image.numel()
        assert image.permute(1, 2, 0).is_contiguous() == encoding.endswith("hwc")
        image.fill_(255)
        assert np.array_equal(dataset[index], expected["image"])


def test_strides_of_hwc_are_channels_last(tmp_path: Path, write_dataset: Callable[..., Any]) -> None:
    write_dataset(tmp_path / "x.pc", [ENCODINGS["raw_hwc"]], 2)
    dataset = CompiledDataset(tmp_path / "x.pc", fields="image")
    assert dataset[0].stride() == (1, 21, 3)
    assert dataset.collate([dataset[0], dataset[1]]).is_contiguous(memory_format=torch.channels_last)


def test_pickle_is_small_whatever_the_size(images: Written, tmp_path: Path, write_dataset: Callable[..., Any]) -> None:
    write_dataset(tmp_path / "a.pc", [FieldSpec("image", "uint8", (3, 4, 4)), FieldSpec("label", "int64", ())], 24)
    write_dataset(tmp_path / "b.pc", [FieldSpec("image", "uint8", (3, 4, 4)), FieldSpec("label", "int64", ())], 2000)
    small, large = (len(pickle.dumps(CompiledDataset(tmp_path / name))) for name in ("a.pc", "b.pc"))
    assert small < 2000
    assert large - small <= 8


def test_pickle_is_equal_in_another_folder(images: Written, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root, samples = images
    monkeypatch.chdir(root.parent)
    before = CompiledDataset(root.name, fields=("image", "label"), split="val", transform=torch.Tensor.float)
    data = pickle.dumps(before)
    monkeypatch.chdir(tmp_path)
    after = pickle.loads(data)
    assert (after.root, after.fields, after.split, len(after)) == (root, ("image", "label"), "val", 10)
    assert after.fingerprint == before.fingerprint
    assert all(torch.equal(after[index][0], before[index][0]) and after[index][1] == before[index][1]
               for index in range(10))  # fmt: skip
    assert np.array_equal(after[0][0], samples[40]["image"])


def test_generation_stays_the_same_in_copies(tmp_path: Path, write_dataset: Callable[..., Any]) -> None:
    root, fields = tmp_path / "x.pc", [FieldSpec("image", "uint8", (1, 3, 3))]
    first = write_dataset(root, fields, 4, seed=1, generation=1)
    opened = CompiledDataset(root)
    data = pickle.dumps(opened)
    second = write_dataset(root, fields, 6, seed=2, generation=2)
    for dataset in (
        opened,
        pickle.loads(data),
        copy.copy(opened),
        copy.deepcopy(opened),
        CompiledDataset(root, generation=1),
    ):
        assert len(dataset) == 4
        assert np.array_equal(dataset[3]["image"], first[3]["image"])
    assert len(CompiledDataset(root)) == 6
    assert np.array_equal(CompiledDataset(root)[3]["image"], second[3]["image"])


@pytest.mark.parametrize(
    "keys", [{"store": "lmdb"}, {"store": "flat", "layout": "HWC"}, {"store": "flat", "encoding": "bmp"}]
)
def test_what_build_wrote_reads_alike(
    photos: Path, compiled_photos: Path, tmp_path: Path, keys: dict[str, str]
) -> None:
    precompile.build(photos, tmp_path / "x.pc", size=32, crop=32, workers=1, quiet=True, **keys)
    dataset, reference = CompiledDataset(tmp_path / "x.pc"), CompiledDataset(compiled_photos)
    assert list(dataset.keys) == list(reference.keys)
    assert dataset.classes == reference.classes == ["class0", "class1", "class2"]
    for index in range(24):
        assert torch.equal(dataset[index]["image"], reference[index]["image"])
        assert dataset[index]["label"] == reference[index]["label"]


def test_a_read_only_directory(read_only: Path, compiled_photos: Path) -> None:
    before = sorted(path.relative_to(read_only) for path in read_only.rglob("*"))
    dataset, reference = CompiledDataset(read_only), CompiledDataset(compiled_photos)
    assert all(torch.equal(dataset[index]["image"], reference[index]["image"]) for index in range(24))
    assert sorted(path.relative_to(read_only) for path in read_only.rglob("*")) == before


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root may become another user")
def test_another_user_reads(read_only: Path, compiled_photos: Path) -> None:
    total = int(sum(sample["image"].sum() for sample in CompiledDataset(compiled_photos)))
    command = [sys.executable, "-W", "error", "-c", READ_AS_NOBODY, str(read_only)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.split() == ["65534", str(total), str(total)], done.stderr
