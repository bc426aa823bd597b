"""Damaged datasets as CompiledDataset and Loader see them: errors that say where to look."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precompile import CompiledDataset, Loader
from precompile.errors import FormatError
from precompile.format.generation import generation_dir
from precompile.format.index import save_column
from precompile.format.schema import TEXT, FieldSpec
from precompile.format.stored import Stored

Write = Callable[..., list[dict[str, Any]]]


def replace(path: Path, content: bytes) -> None:
    """A new file: the old one may be mapped."""
    path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize("size", [9, 1 << 20, 1 << 39])
def test_a_size_that_no_record_has(tmp_path: Path, write_dataset: Write, size: int) -> None:
    write_dataset(tmp_path, [FieldSpec("image", "uint8", (3, 8, 8))], 5)
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    manifest["schema"][0]["shape"][2] = size
    replace(tmp_path / "manifest.json", json.dumps(manifest).encode())
    dataset = CompiledDataset(tmp_path)
    for read in (lambda: dataset[0], lambda: list(Loader(dataset, 2))):
        with pytest.raises(FormatError, match=r"record.npy: a record does not fit its shard or its schema"):
            read()


def test_offsets_of_text_that_do_not_ascend(tmp_path: Path, write_dataset: Write) -> None:
    write_dataset(tmp_path, [FieldSpec("image", "uint8", (1, 2, 2)), FieldSpec("note", TEXT, ())], 5)
    directory = generation_dir(tmp_path, 1)
    offsets = np.array(CompiledDataset(tmp_path).stored.index.columns["note"].offsets)  # type: ignore[union-attr]
    offsets[2] = 1 << 40
    (directory / "column.note.offsets.npy").unlink()
    save_column(directory, "column.note.offsets", offsets)
    dataset = CompiledDataset(tmp_path)
    assert dataset[0]["note"] == "text 0"
    for read in (lambda: dataset[1], lambda: list(Loader(dataset, 2)), lambda: list(dataset.column("note"))):
        with pytest.raises(FormatError, match=r"column.note.offsets.npy: offsets must ascend from 0 to "):
            read()


def test_a_bmp_header_of_another_image(tmp_path: Path, write_dataset: Write) -> None:
    root = tmp_path / "x.pc"
    write_dataset(root, [FieldSpec("image", "uint8", (3, 4, 5), "bmp")], 5)
    (shard,) = (root / "shards").iterdir()
    content = bytearray(shard.read_bytes())
    content[int(Stored(root).index.record[3, 1]) + 18] ^= 1
    replace(shard, bytes(content))
    dataset = CompiledDataset(root)
    wrong = (
        r"a bmp record does not have the header of a 5x4 image with 3 channels; run `precompile verify .*x.pc --full`"
    )
    with pytest.raises(FormatError, match=f"x.pc: sample 3: {wrong}"):
        dataset[3]
    with pytest.raises(FormatError, match=f"x.pc: sample 3: {wrong}"):
        dataset.stored.arrays(3)
    with pytest.raises(FormatError, match=f"x.pc: a batch of 5 samples: {wrong}"):
        list(Loader(dataset, 5))


def test_a_shape_that_does_not_fit_the_schema(tmp_path: Path, write_dataset: Write) -> None:
    write_dataset(tmp_path, [FieldSpec("image", "uint8", (3, None, 4))], 5)
    directory = generation_dir(tmp_path, 1)
    shapes = np.array(CompiledDataset(tmp_path).stored.index.shape_column("image"))
    shapes[1, 2] = 5
    (directory / "shape.image.npy").unlink()
    save_column(directory, "shape.image", shapes)
    dataset = CompiledDataset(tmp_path)
    assert dataset[0]["image"].shape[2] == 4
    for read in (lambda: dataset[1], lambda: list(Loader(dataset, 2))):
        with pytest.raises(FormatError, match=r"000001: shape of sample 1: field image: shape .* does not fit"):
            read()
