"""Equal sources and recipes give equal bytes, whoever compiles them, and whenever."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builds import content

import precompile
from precompile.format.stored import Stored

SHARD_BYTES = 6000
"""Two or three of the 3x24x24 images."""


def build(source: Path, out: Path, **keys: Any) -> precompile.Summary:
    return precompile.build(source, out, quiet=True, size=24, crop=24, shard_size=SHARD_BYTES, **keys)


@pytest.fixture(scope="module")
def flawed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos` with one file that cannot be decoded."""
    root = tmp_path_factory.mktemp("flawed") / "raw"
    shutil.copytree(photos, root)
    (root / "train" / "class0" / "0000.jpg").write_bytes(b"not a picture")
    return root


@pytest.fixture(scope="module", params=["lmdb", "flat"])
def reference(request: pytest.FixtureRequest, flawed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reference") / request.param
    build(flawed, out, workers=1, store=request.param)
    return out


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_bytes_do_not_depend_on_workers(flawed: Path, reference: Path, tmp_path: Path, workers: int) -> None:
    summary = build(flawed, tmp_path / "out", workers=workers, store=reference.name)
    assert content(tmp_path / "out") == content(reference)
    assert summary.fingerprint == precompile.CompiledDataset(reference).fingerprint


def test_there_are_many_shards(reference: Path) -> None:
    assert len(list((reference / "shards").iterdir())) >= 5


def test_fingerprint_is_about_content_only(flawed: Path, reference: Path, tmp_path: Path) -> None:
    """Neither the store, the shards and their order, nor where and when the source was written."""
    moved = tmp_path / "moved"
    shutil.copytree(flawed, moved)
    other = {"store": "flat" if reference.name == "lmdb" else "lmdb", "order": "source"}
    summary = precompile.build(moved, tmp_path / "out", quiet=True, size=24, crop=24, workers=1, **other)
    assert summary.fingerprint == precompile.CompiledDataset(reference).fingerprint
    assert not set(content(tmp_path / "out")) & {path.name for path in (reference / "shards").iterdir()}


@pytest.mark.parametrize("change", [{"size": 25}, {"filter": "box"}, {"encoding": "bmp"}])
def test_fingerprint_changes_with_the_content(
    flawed: Path, reference: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    summary = precompile.build(flawed, tmp_path / "out", quiet=True, workers=1, **{"size": 24, "crop": 24, **change})
    assert summary.fingerprint != precompile.CompiledDataset(reference).fingerprint


def test_order_source_lays_records_in_source_order(flawed: Path, tmp_path: Path) -> None:
    build(flawed, tmp_path / "out", workers=2, store="flat", order="source")
    index = Stored(tmp_path / "out").index
    assert [row[:2] for row in index.record.tolist()] == sorted(row[:2] for row in index.record.tolist())


def test_order_shuffled_mixes_classes_and_keeps_the_index_in_source_order(reference: Path) -> None:
    stored = Stored(reference)
    keys = list(stored.index.keys)
    assert keys == sorted(keys)
    shard = stored.index.record[:, 0]
    assert (np.diff(shard) < 0).any()


def test_every_record_is_what_the_index_says(reference: Path) -> None:
    stored = Stored(reference)
    for number in range(stored.manifest.count):
        assert zlib.crc32(stored.record(number).data) == stored.index.crc32[number]
