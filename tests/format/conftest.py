"""Small datasets of several shards, and copies of them to damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import precompile


@pytest.fixture(scope="session")
def sharded_photos(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """24 pictures, 3x16x16 raw, in several LMDB shards. Read only."""
    out = tmp_path_factory.mktemp("format") / "photos.pc"
    precompile.build(photos, out, size=16, crop=16, shard_size=6000, workers=1, quiet=True)
    return out


@pytest.fixture(scope="session")
def sharded_clips(tmp_path_factory: pytest.TempPathFactory, clips: Path) -> Path:
    """12 spectrograms of varying length in several flat shards of different sizes. Read only."""
    out = tmp_path_factory.mktemp("format") / "clips.pc"
    precompile.build(clips, out, store="flat", shard_size=20_000, workers=1, quiet=True)
    return out


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    """copy_of(dataset): a copy that may be damaged."""

    def copy(dataset: Path) -> Path:
        return Path(shutil.copytree(dataset, tmp_path / "copy"))

    return copy
