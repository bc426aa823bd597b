"""Augmentations on the device: each sample gets a draw of its own, and docs/augmentation.md and the example run."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from builds import REPOSITORY, cli
from torch.nn import functional

EXAMPLES = REPOSITORY / "scripts" / "examples"
sys.path.insert(0, str(EXAMPLES))

import batch_augment  # noqa: E402

PAGE = (REPOSITORY / "docs" / "augmentation.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))

needs_kornia = pytest.mark.skipif(find_spec("kornia") is None, reason="needs kornia")
needs_torchvision = pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")

Augment = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
OF_IMAGES: dict[str, Augment] = {
    "random_flip": batch_augment.random_flip,
    "color_jitter": batch_augment.color_jitter,
    "brightness": lambda images, g: batch_augment.color_jitter(images, g, contrast=0, saturation=0),
    "contrast": lambda images, g: batch_augment.color_jitter(images, g, brightness=0, saturation=0),
    "saturation": lambda images, g: batch_augment.color_jitter(images, g, brightness=0, contrast=0),
    "random_resized_crop": lambda images, g: batch_augment.random_resized_crop(images, 20, g),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small batches, beside other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def copies(count: int = 16, *, height: int = 24, width: int = 32) -> torch.Tensor:
    """The same picture `count` times: float32 (count, 3, height, width) in [0, 1]."""
    return torch.rand(1, 3, height, width, generator=seeded(7)).repeat(count, 1, 1, 1)


def num_different(batch: torch.Tensor) -> int:
    return len(batch.flatten(1).unique(dim=0))


@pytest.mark.parametrize("name", OF_IMAGES)
def test_each_image_gets_a_draw_of_its_own(name: str) -> None:
    images = copies()
    before = images.clone()
    out = OF_IMAGES[name](images, seeded())
    assert num_different(out) == (2 if name == "random_flip" else len(images))
    assert out.dtype == torch.float32
    assert out.shape == ((16, 3, 20, 20) if name == "random_resized_crop" else images.shape)
    assert out.min() >= 0
    assert out.max() <= 1
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_a_seed_repeats_the_draws(name: str) -> None:
    augment, images = OF_IMAGES[name], copies()
    first = augment(images, seeded(3))
    torch.manual_seed(0)
    assert torch.equal(augment(images, seeded(3)), first)
    assert not torch.equal(augment(images, seeded(4)), first)


@pytest.mark.parametrize(("p", "mirrored"), [(0.0, 0), (1.0, 1000), (0.25, 250)])
def test_flips_keep_bytes(p: float, mirrored: int) -> None:
    images = (copies(1000, height=2, width=3) * 255).byte()
    out = batch_augment.random_flip(images, seeded(), p=p)
    assert out.dtype == torch.uint8
    is_mirrored = (out == images.flip(-1)).flatten(1).all(1)
    assert ((out == images).flatten(1).all(1) ^ is_mirrored).all()
    assert int(is_mirrored.sum()) == pytest.approx(mirrored, abs=45)


@needs_torchvision
def test_colours_are_those_of_torchvision() -> None:
    from torchvision.transforms.v2 import functional as reference

    images = torch.rand(8, 3, 9, 11, generator=seeded(1))
    out = batch_augment.color_jitter(images, seeded(), brightness=0.9, contrast=0.8, saturation=0.7)
    generator = seeded()
    factors = [batch_augment.per_sample(images, 1 - s, 1 + s, generator).flatten().tolist() for s in (0.9, 0.8, 0.7)]
    for image, result, (brightness, contrast, saturation) in zip(images, out, zip(*factors)):
        expected = reference.adjust_contrast(reference.adjust_brightness(image, brightness), contrast)
        assert torch.allclose(result, reference.adjust_saturation(expected, saturation), atol=1e-3)


@pytest.mark.parametrize(("size", "antialiased"), [(48, True), (30, True), (8, False)])
def test_a_resized_crop_of_everything_is_a_resize(size: int, antialiased: bool) -> None:
    """Equal to the antialiased resize of torchvision and Pillow where it enlarges, and only there."""
    images = copies(3, height=24, width=24)
    out = batch_augment.random_resized_crop(images, size, seeded(), scale=(1, 1), ratio=(1, 1))
    plain, smooth = [
        functional.interpolate(images, (size, size), mode="bilinear", align_corners=False, antialias=antialias)
        for antialias in (False, True)
    ]
    assert torch.allclose(out, plain, atol=1e-4)
    assert torch.allclose(out, smooth, atol=1e-4) == antialiased


def test_resized_crops_have_the_asked_area_shape_and_place() -> None:
    """Read off images whose pixels say where they are."""
    height, width, size = 60, 100, 16
    y, x = torch.meshgrid((torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width, indexing="ij")
    images = torch.stack([x, y, x]).repeat(500, 1, 1, 1)
    out = batch_augment.random_resized_crop(images, size, seeded(), scale=(0.2, 0.3), ratio=(0.8, 1.25))
    inner = out[:, :, 1:-1, 1:-1]  # away from the border, where pixels are repeated
    across = (inner[:, 0, 0, -1] - inner[:, 0, 0, 0]) * size / (size - 3)
    down = (inner[:, 1, -1, 0] - inner[:, 1, 0, 0]) * size / (size - 3)
    area, ratio = across * down, across * width / (down * height)
    for values, low, high in ((area, 0.2, 0.3), (ratio, 0.8, 1.25)):
        assert low - 1e-3 <= values.min() < low * 1.1
        assert high * 0.9 < values.max() <= high + 1e-3
    for axis, share in ((0, across), (1, down)):
        centre = inner[:, axis].mean((1, 2))
        assert (centre - share / 2).min() >= -1e-3
        assert (centre + share / 2).max() <= 1 + 1e-3
        assert centre.mean() == pytest.approx(0.5, abs=0.03)
        assert centre.std() > 0.1


def test_mixup_weighs_images_and_labels_alike() -> None:
    labels = torch.arange(12) % 5
    images = functional.one_hot(labels, 5).float().view(12, 5, 1, 1).repeat(1, 1, 2, 2)
    mixed, targets = batch_augment.mixup(images, labels, 5, seeded())
    assert targets.shape == (12, 5)
    assert torch.allclose(mixed, targets.view(12, 5, 1, 1).expand_as(mixed))
    assert torch.allclose(targets.sum(1), torch.ones(12))
    blended = targets.max(1).values[targets.max(1).values < 1]
    assert len(blended.unique()) == len(blended) > 4
    again, _ = batch_augment.mixup(images, labels, 5, seeded())
    assert torch.equal(again, mixed)


LENGTHS = torch.tensor([1, 4, 10, 25, 50] * 200)


def masked(**options: Any) -> torch.Tensor:
    """bool (1000, 8, 50): which places of clips of LENGTHS frames are set to 0."""
    return batch_augment.spec_augment(torch.ones(1000, 8, 50), LENGTHS, seeded(), **options) == 0


def test_stripes_are_drawn_per_sample() -> None:
    equal = torch.full((16,), 200)
    clips = torch.rand(1, 80, 200, generator=seeded(7)).repeat(16, 1, 1)
    out = batch_augment.spec_augment(clips, equal, seeded(), max_frames=30)
    assert num_different(out) == 16
    assert (out.shape, out.dtype) == (clips.shape, clips.dtype)
    assert ((out == clips) | (out == 0)).all()
    assert torch.equal(batch_augment.spec_augment(clips, equal, seeded(), max_frames=30), out)


def test_stripes_of_frames_lie_in_the_true_length() -> None:
    stripes = masked(num_masks=1, max_bins=0, max_frames=6)
    assert torch.equal(stripes.any(1), stripes.all(1))
    frames = stripes.any(1)
    assert not (frames & (torch.arange(50) >= LENGTHS[:, None])).any()
    widest = {int(length): int(frames[length == LENGTHS].sum(1).max()) for length in LENGTHS.unique()}
    assert widest == {1: 0, 4: 0, 10: 2, 25: 5, 50: 6}
    assert (frames.int().diff(dim=1) == 1).sum(1).max() == 1
    assert frames[LENGTHS == 50].any(0).all()  # each place is hit by some


def test_stripes_of_bins() -> None:
    stripes = masked(num_masks=1, max_bins=3, max_frames=0)
    bins = stripes.any(2)
    assert torch.equal(bins, stripes.all(2))
    assert set(bins.sum(1).tolist()) == {0, 1, 2, 3}
    assert bins.any(0).all()
    assert masked(num_masks=2, max_bins=3, max_frames=0).any(2).sum(1).max() > 3


@needs_kornia
def test_kornia_draws_per_sample(page: Page) -> None:
    augment = page.run("Windows", "In plain torch", "kornia")["augment"]
    images = copies(height=224, width=224)
    torch.manual_seed(0)
    out = augment(images)
    assert (out.shape, out.dtype) == ((16, 3, 192, 192), torch.float32)
    assert num_different(out) == 16
    assert out.min() >= 0
    assert out.max() <= 1
    torch.manual_seed(0)
    assert torch.equal(augment(images), out)


@needs_kornia
def test_what_the_page_says_of_kornia() -> None:
    import kornia.augmentation as K  # noqa: N812

    images = copies()
    torch.manual_seed(0)
    assert num_different(K.RandomHorizontalFlip(p=0.5)(images)) == 2
    whole = [num_different(K.RandomHorizontalFlip(p=0.5, p_batch=0.5)(images)) for _ in range(40)]
    assert set(whole) == {1, 2}
    assert num_different(K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=1.0)(images)) == 16
    assert num_different(K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=1.0, same_on_batch=True)(images)) == 1
    crops = [K.RandomResizedCrop((20, 20), p=0.5) for _ in range(40)]
    assert {num_different(crop(images)) for crop in crops} <= {1, 16}


@needs_torchvision
def test_torchvision_draws_once_a_batch(page: Page) -> None:
    names = page.run("Windows", "In plain torch", "torchvision")
    transform, images = names["transform"], copies(16, height=224, width=224)
    assert num_different(names["one_draw"]) == 1
    assert num_different(transform(images)) == 1
    assert num_different(torch.cat([transform(part) for part in images.split(4)])) == 4
    assert num_different(torch.stack([transform(image) for image in images])) == 16
    assert (num_different(names["draw_per_part"]), num_different(names["draw_per_sample"])) == (2, 4)
    drawn = [image for batch, _ in names["transformed"] for image in batch]
    assert {tuple(image.shape) for image in drawn} == {(3, 192, 192)}
    assert not torch.equal(names["photos"][0][0], names["photos"][0][0])


def test_torchaudio_draws_per_sample_when_asked() -> None:
    from torchaudio.transforms import FrequencyMasking

    clips = torch.rand(1, 1, 80, 50, generator=seeded(7)).repeat(16, 1, 1, 1)
    torch.manual_seed(0)
    assert num_different(FrequencyMasking(27)(clips)) == 1
    assert num_different(FrequencyMasking(27, iid_masks=True)(clips)) > 4


class Page:
    """docs/augmentation.md in a folder that has its `photos/` and `clips/`, compiled by its own commands."""

    def run(self, *titles: str) -> dict[str, Any]:
        """The names that the blocks of these sections define, run in order."""
        names: dict[str, Any] = {}
        for title in titles:
            for block in re.findall(r"^```python\n(.*?)^```$", SECTIONS[title], re.MULTILINE | re.DOTALL):
                exec(compile(block, f"docs/augmentation.md, {title}", "exec", dont_inherit=True), names)
        return names


@pytest.fixture(scope="module")
def page(photos: Path, clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "photos").symlink_to(photos)
    (folder / "clips").symlink_to(clips)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        commands = re.findall(r"^precompile (.*)$", SECTIONS["Windows"], re.MULTILINE)
        assert [cli(*line.split()).code for line in commands] == [0, 0]
        yield Page()


def test_the_page_reads_windows_and_augments_them(page: Page) -> None:
    names = page.run("Windows", "In plain torch")
    assert names["images"].shape[1:] == (3, 192, 192)
    assert names["targets"].shape == (len(names["images"]), 3)
    assert names["spectrograms"].shape[1:] == (80, 300)
    again = page.run("Windows", "In plain torch")
    for name in ("images", "targets", "spectrograms"):
        assert torch.equal(again[name], names[name]), name


def test_the_page_shows_the_functions_as_they_are() -> None:
    blocks = "".join(re.findall(r"^```python\n(.*?)^```$", SECTIONS["In plain torch"], re.MULTILINE | re.DOTALL))
    shown = re.findall(r"^def (\w+)", blocks, re.MULTILINE)
    named = re.findall(r"^\| `(\w+)` \|", SECTIONS["In plain torch"], re.MULTILINE)
    assert shown
    assert named
    for name in shown:
        assert inspect.getsource(getattr(batch_augment, name)) in blocks
    helpers = {"gray", "random_spans"}
    public = {name for name, value in vars(batch_augment).items() if inspect.isfunction(value)}
    assert {*shown, *named} == public - helpers


def test_links_exist() -> None:
    targets = re.findall(r"\]\((?!http|#)([^)#]+)\)", PAGE)
    assert targets
    assert all((REPOSITORY / "docs" / target).exists() for target in targets)
    (script,) = re.findall(r"^python (\S+)", PAGE, re.MULTILINE)
    assert (REPOSITORY / script).exists()


def test_the_example_trains() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "augment_on_device.py", "--pictures", "60", "--batch-size", "24", "--epochs", "1"],
        capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    windows, draws, result = done.stdout.splitlines()
    assert re.fullmatch(r"one image in 8 epochs: [2-8] different windows", windows)
    assert draws == "8 copies of one window in a batch: 8 different results"
    assert re.fullmatch(r"2 steps on cpu: loss \d\.\d\d -> \d\.\d\d, [\d,]+ samples/s", result)
