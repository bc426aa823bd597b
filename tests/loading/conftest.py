"""Datasets written straight from arrays, without a pipeline: any schema, any size, in milliseconds."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precompile.format import record
from precompile.format.generation import generation_dir
from precompile.format.index import Column, save_column
from precompile.format.manifest import MANIFEST_NAME, Manifest, Shard, Split
from precompile.format.schema import TEXT, FieldSpec, Schema
from precompile.format.text import TextColumn
from precompile.pipeline.plugins import load

Sizes = Callable[[np.random.Generator], tuple[int, ...]]


def random_array(rng: np.random.Generator, spec: FieldSpec) -> np.ndarray:
    """Random values of the field's dtype; a varying axis gets 1 to 9 elements."""
    shape = tuple(int(rng.integers(1, 10)) if size is None else size for size in spec.shape)
    values = rng.integers(0, 100, shape)
    return values.astype(spec.dtype)


def random_column(spec: FieldSpec, count: int) -> Column:
    if spec.dtype == TEXT:
        return TextColumn.of("ä" * (number % 4) + f"text {number}" for number in range(count))
    return (np.arange(count) % 3).astype(spec.dtype)


def write_shards(root: Path, schema: Schema, records: Sequence[np.ndarray], store: str, num_shards: int,
                 generation: int) -> tuple[list[Shard], np.ndarray]:  # fmt: skip
    place = np.zeros((len(records), 3), np.int64)
    shards = []
    order = np.random.default_rng(generation).permutation(len(records))
    for number, members in enumerate(np.array_split(order, num_shards)):
        path = root / "shards" / f"{generation:016x}{number:016x}.{store}"
        writer = load("writers", store).make(path)
        for member in members:
            writer.append(records[member])
        place[members, 0], place[members, 1] = number, writer.commit()
        place[members, 2] = [len(records[member]) for member in members]
        shards.append(Shard(path.name, path.stat().st_size, len(members), "0" * 32, {}))
    return shards, place


def write(root: Path, fields: Sequence[FieldSpec], count: int, *, splits: Mapping[str, int] | None = None,
          num_shards: int = 1, store: str = "flat", seed: int = 0, generation: int = 1,
          classes: tuple[str, ...] | None = None) -> list[dict[str, Any]]:  # fmt: skip
    """Write a dataset of random samples to `root` as a new current generation; returns what the samples are."""
    rng = np.random.default_rng(seed)
    schema = Schema(tuple(fields))
    samples = [{spec.name: random_array(rng, spec) for spec in schema.arrays} for _ in range(count)]
    directory = generation_dir(root, generation)
    (root / "shards").mkdir(parents=True, exist_ok=True)
    directory.mkdir(parents=True)
    shards, place = write_shards(
        root, schema, [record.encode(schema, s) for s in samples], store, num_shards, generation
    )
    save_column(directory, "record", place)
    save_column(directory, "crc32", np.zeros(count, np.uint32))
    save_column(directory, "key", TextColumn.of(f"{number}.raw" for number in range(count)))
    for spec in schema.arrays:
        if not spec.is_fixed:
            shapes = np.array([sample[spec.name].shape for sample in samples], np.int64)
            save_column(directory, f"shape.{spec.name}", shapes)
    for spec in schema.columns:
        column = random_column(spec, count)
        save_column(directory, f"column.{spec.name}", column)
        for sample, value in zip(samples, column):
            sample[spec.name] = value if isinstance(value, str) else value.item()
    starts = np.cumsum([0, *(splits or {"all": count}).values()]).tolist()
    parts = tuple(Split(name, start, n) for (name, n), start in zip((splits or {"all": count}).items(), starts))
    manifest = Manifest(generation, schema, count, classes, parts, tuple(shards), {}, f"{seed:032x}", store, {},
                        "0" * 32, {}, 0, {}, "2026-01-01T00:00:00+00:00", "tests")  # fmt: skip
    for path in (directory / MANIFEST_NAME, root / MANIFEST_NAME):
        path.write_text(manifest.to_json())
    return samples


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
