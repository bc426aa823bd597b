"""Datasets to read: written straight from arrays, on disks and RAM disks, and one that nobody may write to."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from written import write

from precompile.format.schema import TEXT, FieldSpec


@pytest.fixture(scope="session")
def write_dataset() -> Callable[..., list[dict[str, Any]]]:
    """write_dataset(root, fields, count, *, splits, num_shards, store, seed, generation, classes) -> the samples."""
    return write


IMAGE_FIELDS = (FieldSpec("image", "uint8", (3, 8, 8)), FieldSpec("label", "int64", ()), FieldSpec("note", TEXT, ()))
CLIP_FIELDS = (FieldSpec("spectrogram", "float16", (4, None)), FieldSpec("label", "int64", ()))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """(root, samples): 50 images 3x8x8 with label and text, train (40) and val (10), three flat shards. Read only."""
    root = tmp_path_factory.mktemp("images") / "images.pc"
    return root, write(root, IMAGE_FIELDS, 50, splits={"train": 40, "val": 10}, num_shards=3, classes=("a", "b", "c"))


@pytest.fixture(scope="session")
def spectrograms(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """(root, samples): 30 float16 spectrograms 4 x (1 to 9) with a label, two flat shards. Read only."""
    root = tmp_path_factory.mktemp("spectrograms") / "spectrograms.pc"
    return root, write(root, CLIP_FIELDS, 30, num_shards=2)


@pytest.fixture(params=["disk", "tmpfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """An empty folder on the local disk, then one on a RAM disk."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no writable /dev/shm here")
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="precompile-tests-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def read_only(compiled_photos: Path) -> Iterator[Path]:
    """A copy of a dataset in which nobody may write, in a folder that everybody may enter."""
    folder = Path(tempfile.mkdtemp(prefix="precompile-tests-"))
    folder.chmod(0o755)
    root = shutil.copytree(compiled_photos, folder / "photos.pc")
    everything = [root, *root.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield root
    for path in everything:
        path.chmod(0o755)
    shutil.rmtree(folder)
