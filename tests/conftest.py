"""Shared test data, all made here; the folder of odd real files is optional."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

CORPORA = Path(__file__).resolve().parents[2] / "shared" / "corpora"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`long` tests run only when they are asked for, whatever else -m says."""
    if "long" in config.getoption("markexpr"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in set(long)]


@pytest.fixture(scope="session")
def corpora() -> Path:
    """A folder of odd real files with reference results, beside the repository; skips where it is missing."""
    if not CORPORA.is_dir():
        pytest.skip(f"the folder of odd real files is not here ({CORPORA})")
    return CORPORA


def photo(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A smooth, colourful uint8 (height, width, 3) that compresses like a photograph."""
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    return np.clip(smooth + rng.integers(-8, 9, (height, width, 1)), 0, 255).astype(np.uint8)


@pytest.fixture(scope="session")
def make_photos() -> Callable[..., Path]:
    """make_photos(root, count=24, classes=3, splits=("train", "val"), size=(60, 80)): jpg files in class folders.

    size is (height, width); None gives every picture another size. splits=() makes class folders only.
    """

    def make(root: Path, *, count: int = 24, classes: int = 3, splits: tuple[str, ...] = ("train", "val"),
             size: tuple[int, int] | None = (60, 80), suffix: str = ".jpg", seed: int = 0) -> Path:  # fmt: skip
        rng = np.random.default_rng(seed)
        for number in range(count):
            folder = root / (splits[number % len(splits)] if splits else "") / f"class{number % classes}"
            folder.mkdir(parents=True, exist_ok=True)
            height, width = size or rng.integers(40, 120, 2).tolist()
            Image.fromarray(photo(rng, height, width)).save(folder / f"{number:04d}{suffix}", quality=90)
        return root

    return make


@pytest.fixture(scope="session")
def make_clips() -> Callable[..., Path]:
    """make_clips(root, count=12, classes=3, seconds=(0.2, 0.5), sample_rate=16000): mono wav files in class folders."""

    def make(root: Path, *, count: int = 12, classes: int = 3, seconds: tuple[float, float] = (0.2, 0.5),
             sample_rate: int = 16000, seed: int = 0) -> Path:  # fmt: skip
        rng = np.random.default_rng(seed)
        for number in range(count):
            folder = root / f"class{number % classes}"
            folder.mkdir(parents=True, exist_ok=True)
            time = np.arange(int(sample_rate * rng.uniform(*seconds))) / sample_rate
            tone = 0.3 * np.sin(2 * np.pi * (200 + 100 * (number % classes)) * time)
            soundfile.write(folder / f"{number:04d}.wav", tone + 0.01 * rng.standard_normal(len(time)), sample_rate)
        return root

    return make


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory, make_photos: Callable[..., Path]) -> Path:
    """24 jpg of 60x80 in train/ and val/, three classes. Read only; make your own to change one."""
    return make_photos(tmp_path_factory.mktemp("photos") / "raw")


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory, make_clips: Callable[..., Path]) -> Path:
    """12 mono wav files of 16 kHz and varying length, three classes, no splits. Read only."""
    return make_clips(tmp_path_factory.mktemp("clips") / "raw")


@pytest.fixture(scope="session")
def compiled_photos(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """`photos` compiled to 3x32x32, LMDB. Read only."""
    import precompile

    out = tmp_path_factory.mktemp("compiled") / "photos.pc"
    precompile.build(photos, out, size=32, crop=32, workers=1, quiet=True)
    return out


@pytest.fixture(scope="session")
def compiled_clips(tmp_path_factory: pytest.TempPathFactory, clips: Path) -> Path:
    """`clips` compiled to log-mel spectrograms of varying length, flat. Read only."""
    import precompile

    out = tmp_path_factory.mktemp("compiled") / "clips.pc"
    precompile.build(clips, out, store="flat", workers=1, quiet=True)
    return out
