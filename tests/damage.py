"""Datasets with known damage, for tests of what finds and mends it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import precompile
from precompile.pipeline.checksum import file_checksum


def shards(out: Path) -> list[Path]:
    return sorted((out / "shards").iterdir())


def index_file(out: Path, name: str, generation: int = 1) -> Path:
    return out / "generations" / f"{generation:06d}" / name


def flip(path: Path, position: int = -1) -> None:
    """One bit of one byte."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-64])


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(64))


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def place(out: Path, key: str) -> tuple[Path, int, int]:
    """The shard of a sample, and offset and length of its record there."""
    dataset = precompile.CompiledDataset(out)
    shard, offset, length = dataset.stored.index.record[list(dataset.keys).index(key)].tolist()
    return out / "shards" / dataset.manifest.shards[shard].file, offset, length


def edit_manifest(out: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """In both copies of a dataset's only generation."""
    manifest = json.loads((out / "manifest.json").read_text())
    change(manifest)
    for path in out.rglob("manifest.json"):
        path.write_text(json.dumps(manifest))


def edit_column(out: Path, name: str, change: Callable[[np.ndarray], np.ndarray | None]) -> Path:
    """`change` works in place, or returns another array; returns the file. Its size stays if the shape does."""
    path = index_file(out, name)
    array = np.load(path)
    other = change(array)
    np.save(path, array if other is None else other)
    return path


def forge_index(out: Path) -> None:
    """Make sizes and checksums of the index files fit what they are now."""

    def change(manifest: dict[str, Any]) -> None:
        for name, item in manifest["index"].items():
            path = index_file(out, name)
            item.update(bytes=path.stat().st_size, xxh3=file_checksum(path))

    edit_manifest(out, change)
