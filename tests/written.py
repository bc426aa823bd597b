"""Datasets written straight from arrays, without a pipeline: any schema, any size, in milliseconds, the same bytes
each time."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from precompile.format import record
from precompile.format.generation import generation_dir
from precompile.format.index import Column, save_column
from precompile.format.manifest import MANIFEST_NAME, IndexFile, Manifest, Shard, Split
from precompile.format.schema import TEXT, FieldSpec, Schema
from precompile.format.stored import Stored
from precompile.format.text import TextColumn
from precompile.pipeline.checksum import file_checksum
from precompile.pipeline.fingerprint import fingerprint_of
from precompile.pipeline.plugins import load


def random_array(rng: np.random.Generator, spec: FieldSpec) -> np.ndarray:
    """Random values of the field's dtype; a varying axis gets 1 to 9 elements."""
    shape = tuple(int(rng.integers(1, 10)) if size is None else size for size in spec.shape)
    return rng.integers(0, 100, shape).astype(spec.dtype)


def random_column(spec: FieldSpec, count: int) -> Column:
    if spec.dtype == TEXT:
        return TextColumn.of("ä" * (number % 4) + f"text {number}" for number in range(count))
    return (np.arange(count) % 3).astype(spec.dtype)


def write_shards(root: Path, records: Sequence[np.ndarray], store: str, num_shards: int,
                 generation: int) -> tuple[tuple[Shard, ...], np.ndarray]:  # fmt: skip
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
        shards.append(Shard(path.name, path.stat().st_size, len(members), file_checksum(path), {}))
    return tuple(shards), place


def write_index(directory: Path, schema: Schema, samples: list[dict[str, Any]], place: np.ndarray,
                records: Sequence[np.ndarray]) -> None:  # fmt: skip
    count = len(samples)
    save_column(directory, "record", place)
    save_column(directory, "crc32", np.array([zlib.crc32(data) for data in records], np.uint32))
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


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Both copies, with the checksums of the index files and the fingerprint."""
    directory = generation_dir(root, manifest.generation)
    files = {path.name: IndexFile(path.stat().st_size, file_checksum(path)) for path in sorted(directory.iterdir())}
    manifest = replace(manifest, index=files)
    (root / MANIFEST_NAME).write_text(manifest.to_json())
    manifest = replace(manifest, fingerprint=fingerprint_of(Stored(root)))
    for path in (directory / MANIFEST_NAME, root / MANIFEST_NAME):
        path.write_text(manifest.to_json())


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
    records = [record.encode(schema, sample) for sample in samples]
    shards, place = write_shards(root, records, store, num_shards, generation)
    write_index(directory, schema, samples, place, records)
    starts = np.cumsum([0, *(splits or {"all": count}).values()]).tolist()
    parts = tuple(Split(name, start, n) for (name, n), start in zip((splits or {"all": count}).items(), starts))
    manifest = Manifest(generation, schema, count, classes, parts, shards, {}, "", store, {}, "0" * 32, {}, 0, {},
                        "2026-01-01T00:00:00+00:00", "tests")  # fmt: skip
    write_manifest(root, manifest)
    return samples
