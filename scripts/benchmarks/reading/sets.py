"""Datasets of noise, written with the package's own writers, without a source and without decoding."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from precompile.format.generation import generation_dir, shard_path
from precompile.format.index import save_column
from precompile.format.manifest import MANIFEST_NAME, Manifest, Shard, Split, read_manifest
from precompile.format.schema import ARRAY_DTYPES, FieldSpec, Schema
from precompile.format.text import TextColumn
from precompile.loading.dataset import CompiledDataset
from precompile.pipeline.writers import open_writer

SHARDS = 64
"""As many as a build makes."""
_GENERATION = 1
_NO_DIGEST = "0" * 32
_NOISE = np.random.default_rng(0).integers(0, 256, 1 << 24, dtype=np.uint8)


def write(root: Path, spec: FieldSpec, count: int, *, sizes: np.ndarray | None = None, store: str = "flat",
          num_shards: int = SHARDS) -> CompiledDataset:  # fmt: skip
    """`count` samples of one array field, spread over the shards in random order as a build does.

    sizes: int64 (count,), of the axis that varies.
    """
    directory = generation_dir(root, _GENERATION)
    (root / "shards").mkdir(parents=True)
    directory.mkdir(parents=True)
    lengths = np.full(count, ARRAY_DTYPES[spec.dtype] * np.prod([size or 1 for size in spec.shape]))
    if sizes is not None:
        lengths *= sizes
        shapes = [sizes if size is None else np.full(count, size) for size in spec.shape]
        save_column(directory, f"shape.{spec.name}", np.stack(shapes, axis=1))
    shards, places = _write_shards(root, lengths, store, min(num_shards, count))
    save_column(directory, "record", places)
    save_column(directory, "crc32", np.zeros(count, np.uint32))
    save_column(directory, "key", TextColumn(np.zeros(count + 1, np.int64), np.zeros(0, np.uint8)))
    _write_manifest(root, Manifest(
        _GENERATION, Schema((spec,)), count, None, (Split("all", 0, count),), shards, {}, _NO_DIGEST, store, {},
        _NO_DIGEST, {}, 0, {}, "2026-01-01T00:00:00+00:00", "benchmark",
    ))  # fmt: skip
    return CompiledDataset(root, fields=spec.name)


def _write_shards(root: Path, lengths: np.ndarray, store: str, num_shards: int) -> tuple[tuple[Shard, ...], np.ndarray]:
    """The shards, and int64 (n, 3): what `record.npy` holds."""
    places = np.zeros((len(lengths), 3), np.int64)
    places[:, 2] = lengths
    shards = []
    order = np.random.default_rng(0).permutation(len(lengths))
    for number, members in enumerate(np.array_split(order, num_shards)):
        path = shard_path(root, f"{number:032x}.{store}")
        writer = open_writer(store, path)
        for member, length in zip(members.tolist(), lengths[members].tolist()):
            start = 7919 * member % (len(_NOISE) - length)
            writer.append(_NOISE[start : start + length])
        places[members, 0], places[members, 1] = number, writer.commit()
        shards.append(Shard(path.name, path.stat().st_size, len(members), _NO_DIGEST, {}))
    return tuple(shards), places


def _write_manifest(root: Path, manifest: Manifest) -> None:
    for path in (generation_dir(root, _GENERATION) / MANIFEST_NAME, root / MANIFEST_NAME):
        path.write_text(manifest.to_json())


def write_sparse(root: Path, spec: FieldSpec, count: int) -> None:
    """A dataset that says it has `count` samples; its index files are as long, and empty but for the headers."""
    write(root, spec, 1)
    directory = generation_dir(root, _GENERATION)
    for name, dtype, shape in (
        ("record", "<i8", (count, 3)), ("crc32", "<u4", (count,)), ("key.offsets", "<i8", (count + 1,)),
    ):  # fmt: skip
        with (directory / f"{name}.npy").open("wb") as file:
            header = {"descr": dtype, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + np.dtype(dtype).itemsize * int(np.prod(shape)))
    manifest = read_manifest(root / MANIFEST_NAME)
    _write_manifest(root, replace(manifest, count=count, splits=(Split("all", 0, count),)))


def plain_copy(dataset: CompiledDataset, path: Path) -> np.ndarray:
    """All records one behind the other in a plain file, mapped: uint8 (bytes,). Written when it is not there yet."""
    if not path.exists():
        with path.open("wb") as file:
            for index in range(len(dataset)):
                file.write(dataset.stored.record(index))
            file.flush()
            os.fsync(file.fileno())
    return np.memmap(path, np.uint8, "r").view(np.ndarray)
