"""Windows: what is cut where, on every kind of image and spectrogram, against direct reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import functional

from precompile import CenterCrop, CenterTimeWindow, CompiledDataset, Loader, Padded, RandomCrop, RandomTimeWindow
from precompile.format.schema import FieldSpec

pytestmark = pytest.mark.filterwarnings("error")

Written = tuple[Path, list[dict[str, Any]]]
IMAGES = {
    "raw": FieldSpec("image", "uint8", (3, 11, 14)),
    "raw_hwc": FieldSpec("image", "uint8", (3, 11, 14), "raw_hwc"),
    "bmp": FieldSpec("image", "uint8", (3, 11, 14), "bmp"),
    "gray bmp": FieldSpec("image", "uint8", (1, 11, 14), "bmp"),
    "float32": FieldSpec("image", "float32", (2, 11, 14)),
    "varying": FieldSpec("image", "uint8", (3, None, None)),
    "varying raw_hwc": FieldSpec("image", "uint8", (3, None, None), "raw_hwc"),
    "varying bmp": FieldSpec("image", "uint8", (3, None, None), "bmp"),
    "varying channels": FieldSpec("image", "int16", (None, None, 14)),
}
SIDES = {"varying": 1, "varying raw_hwc": 1, "varying bmp": 1, "varying channels": 1}
"""Varying axes have 1 to 9 elements, so only a window of 1 fits them all."""


@pytest.fixture(params=["flat", "lmdb"])
def write(request: pytest.FixtureRequest, tmp_path: Path, write_dataset: Callable[..., Any]) -> Callable[..., Any]:
    def made(*fields: FieldSpec, count: int = 13) -> CompiledDataset:
        write_dataset(tmp_path / "x.pc", [*fields, FieldSpec("label", "int64", ())], count, num_shards=2,
                      store=request.param)  # fmt: skip
        return CompiledDataset(tmp_path / "x.pc")

    return made


VARYING_BMP = FieldSpec("image", "uint8", (None, None, None), "bmp")


def place_of(window: torch.Tensor, whole: torch.Tensor) -> list[tuple[int, int]]:
    """Where a window of an image may have been cut from."""
    height, width = window.shape[-2:]
    return [
        (top, left)
        for top in range(whole.shape[-2] - height + 1)
        for left in range(whole.shape[-1] - width + 1)
        if torch.equal(whole[..., top : top + height, left : left + width], window)
    ]


@pytest.mark.parametrize("form", IMAGES)
@pytest.mark.parametrize("size", [1, 7, (3, 14), (11, 2), (10, 13), (11, 14)])
def test_center_crop_is_torchvisions(write: Callable[..., Any], form: str, size: Any) -> None:
    size = SIDES.get(form, size)
    dataset = write(IMAGES[form])
    stream = iter(Loader(dataset, 5, windows=CenterCrop(size)))
    for start, batch in zip(range(0, 13, 5), stream, strict=True):
        images = batch["image"]
        assert isinstance(images, Padded) is (form == "varying channels")
        if isinstance(images, Padded):
            indices = range(start, min(start + 5, 13))
            assert images.lengths[:, 0].tolist() == [len(dataset[index]["image"]) for index in indices]
            images = images.data
        for row, index in zip(images, range(start, 13)):
            sides = [size, size] if isinstance(size, int) else list(size)
            whole = functional.center_crop(dataset[index]["image"], sides)
            assert torch.equal(row[: len(whole)], whole)
            assert row.dtype == whole.dtype
        assert batch["label"].tolist() == [dataset[index]["label"] for index in range(start, min(start + 5, 13))]


@pytest.mark.parametrize("form", ["raw", "raw_hwc", "bmp", "float32"])
def test_a_crop_has_the_layout_of_the_field(write: Callable[..., Any], form: str) -> None:
    dataset = write(IMAGES[form])
    plain = next(iter(Loader(dataset, 5)))["image"]
    crop = next(iter(Loader(dataset, 5, windows=CenterCrop((8, 6)))))["image"]
    assert crop.is_contiguous(memory_format=torch.channels_last) == plain.is_contiguous(
        memory_format=torch.channels_last
    )
    assert crop.is_contiguous() == plain.is_contiguous()


@pytest.mark.parametrize("form", ["raw", "raw_hwc", "bmp"])
def test_random_crops_depend_on_seed_epoch_and_sample_alone(write: Callable[..., Any], form: str) -> None:
    dataset = write(IMAGES[form])

    def crops(epoch: int, **options: Any) -> dict[int, torch.Tensor]:
        loader = Loader(dataset, windows=RandomCrop((7, 9)), **{"batch_size": 4, "seed": 3, **options})
        loader.set_epoch(epoch)
        images = [image for batch in loader for image in batch["image"].clone()]
        order = options.get("sampler", range(13))
        return dict(zip(order, images, strict=True))

    first = crops(0)
    assert all(place_of(crop, dataset[index]["image"]) for index, crop in first.items())
    for other in (
        crops(0, batch_size=13), crops(0, threads=3), crops(0, prefetch=0),
        crops(0, sampler=list(reversed(range(13)))), crops(0, sampler=[5, 5, 2]),
    ):  # fmt: skip
        assert all(torch.equal(crop, first[index]) for index, crop in other.items())
    for other in (crops(1), crops(0, seed=4)):
        assert sum(torch.equal(other[index], first[index]) for index in first) < 4


def test_all_places_are_equally_likely(write: Callable[..., Any]) -> None:
    dataset = write(FieldSpec("image", "uint8", (1, 6, 5)), count=40)
    loader = Loader(dataset, 40, windows=RandomCrop((4, 3)))
    wholes = [dataset[index]["image"] for index in range(40)]
    counts = np.zeros((3, 3), int)
    for _ in range(45):
        (batch,) = loader
        for crop, whole in zip(batch["image"], wholes):
            (place,) = place_of(crop, whole)
            counts[place] += 1
    expected = 40 * 45 / 9
    assert ((counts - expected) ** 2 / expected).sum() < 26.1  # chi-square of 8 degrees of freedom, p = 0.001


def test_fields_of_one_size_get_the_same_window(write: Callable[..., Any]) -> None:
    dataset = write(FieldSpec("image", "uint8", (3, 9, 9)), FieldSpec("mask", "uint8", (1, 9, 9), "raw_hwc"))
    crop = RandomCrop(5)
    for batch in Loader(dataset, 6, windows={"image": crop, "mask": crop}):
        for image, mask, label in zip(batch["image"], batch["mask"], batch["label"]):
            del label
            assert image.shape == (3, 5, 5)
            assert mask.shape == (1, 5, 5)
    pairs = [
        (place_of(image, dataset[index]["image"]), place_of(mask, dataset[index]["mask"]))
        for index, (image, mask) in enumerate(
            pair for batch in Loader(dataset, 6, windows={"image": crop, "mask": crop})
            for pair in zip(batch["image"].clone(), batch["mask"].clone())
        )
    ]  # fmt: skip
    assert all(set(images) & set(masks) for images, masks in pairs)


SPECTROGRAMS = {
    "fixed": FieldSpec("spectrogram", "float16", (4, 20)),
    "varying": FieldSpec("spectrogram", "float16", (4, None)),
    "waveform": FieldSpec("spectrogram", "int16", (None,)),
    "all vary": FieldSpec("spectrogram", "float32", (None, 2, None)),
}


@pytest.mark.parametrize("form", SPECTROGRAMS)
@pytest.mark.parametrize("frames", [1, 5, 9, 30])
@pytest.mark.parametrize("kind", [CenterTimeWindow, RandomTimeWindow])
def test_time_windows(write: Callable[..., Any], form: str, frames: int, kind: Any) -> None:
    dataset = write(SPECTROGRAMS[form])
    seen = 0
    for batch in Loader(dataset, 4, windows=kind(frames)):
        found = batch["spectrogram"]
        assert isinstance(found, Padded) is (form != "fixed")
        data = found.data if isinstance(found, Padded) else found
        assert data.shape[-1] == frames
        for number, row in enumerate(data):
            whole = dataset[seen]["spectrogram"]
            length = min(frames, whole.shape[-1])
            if isinstance(found, Padded):
                lengths = np.atleast_1d(found.lengths[number].numpy())
                assert lengths[-1] == length
            if form == "all vary":
                assert not row[len(whole) :].any()
                row = row[: len(whole)]
            assert not row[..., length:].any()
            room = whole.shape[-1] - length
            starts = [round(room / 2)] if kind is CenterTimeWindow else range(room + 1)
            assert any(torch.equal(row[..., :length], whole[..., start : start + length]) for start in starts)
            seen += 1
    assert seen == 13


def test_a_sample_smaller_than_the_window_is_named(write: Callable[..., Any]) -> None:
    dataset = write(IMAGES["varying"])
    index = next(i for i in range(13) if min(dataset[i]["image"].shape[1:]) < 9)
    shape = str(tuple(dataset[index]["image"].shape)).replace("(", r"\(").replace(")", r"\)")
    expected = rf"sample {index} \({index}.raw\): image of shape {shape} is smaller than CenterCrop\(size=\(9, 9\)\)"
    with pytest.raises(ValueError, match=expected):
        list(Loader(dataset, 1, windows=CenterCrop(9)))


@pytest.mark.parametrize(("windows", "error", "message"), [
    (CenterCrop(12), ValueError, r"CenterCrop\(size=\(12, 12\)\) is larger than field image of shape \(3, 8, 8\)"),
    ({"label": CenterCrop(2)}, ValueError, "windows must name array fields among image, got 'label'"),
    ({"nothing": CenterCrop(2)}, ValueError, "windows must name array fields among image, got 'nothing'"),
    (224, TypeError, r"windows must be a window such as RandomCrop\(224\), or a dict of them by field, got 224"),
])  # fmt: skip
def test_wrong_windows(images: Written, windows: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Loader(CompiledDataset(images[0]), 2, windows=windows)


def test_windows_need_an_array_and_no_python(images: Written) -> None:
    with pytest.raises(ValueError, match="windows needs an array field among fields, got label"):
        Loader(CompiledDataset(images[0], fields="label"), 2, windows=RandomCrop(4))
    with pytest.raises(ValueError, match="windows are read from memory as they are, without transform="):
        Loader(CompiledDataset(images[0], transform=lambda image: image), 2, windows=RandomCrop(4))
    for window, form in ((CenterTimeWindow(2), IMAGES["bmp"]), (RandomCrop(2), VARYING_BMP)):
        with pytest.raises(ValueError, match=r"needs encoding raw or raw_hwc, got image .* of encoding bmp"):
            window.check(form)
    with pytest.raises(ValueError, match=r"needs a field of at least 2 axes, got wave of shape \(None,\)"):
        RandomCrop(2).check(FieldSpec("wave", "int16", (None,)))


@pytest.mark.parametrize("size", [0, -3, 2.0, "4", None, True, (1, 2, 3), (4,)])
def test_wrong_sizes(size: Any) -> None:
    with pytest.raises(ValueError, match=r"(size|height) must be "):
        RandomCrop(size)
    if not isinstance(size, tuple):
        with pytest.raises(ValueError, match="num_frames must be an integer of at least 1, got num_frames="):
            RandomTimeWindow(size)
