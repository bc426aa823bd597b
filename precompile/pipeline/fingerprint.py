"""What identifies the content of a dataset: no time, host, path, store or cut of shards enters it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from precompile.format.index import Column
from precompile.format.manifest import Split
from precompile.format.schema import Schema
from precompile.format.stored import Stored
from precompile.format.text import TextColumn
from precompile.pipeline.checksum import values_checksum


def fingerprint(
    schema: Schema,
    classes: tuple[str, ...] | None,
    splits: Sequence[Split],
    *,
    keys: TextColumn,
    arrays: Mapping[str, np.ndarray],
    columns: Mapping[str, Column],
) -> str:
    """XXH3-128 over schema, classes, splits, keys, checksums and lengths of records, varying shapes, and columns.

    arrays: `record`, `crc32` and `shape.<field>` of every varying field, as in the index.
    """
    shapes = [np.ascontiguousarray(arrays[name]) for name in sorted(arrays) if name.startswith("shape.")]
    parts = [part for name, column in sorted(columns.items()) for part in (name, column)]
    runs = repr([(split.name, split.start, split.count) for split in splits])
    lengths = arrays["record"][:, 2].copy()
    return values_checksum(
        repr(schema.to_json()), repr(classes), runs, keys, arrays["crc32"], lengths, *shapes, *parts
    )  # fmt: skip


def fingerprint_of(stored: Stored) -> str:
    """Computed anew from the index files and the manifest's schema, classes and splits."""
    index, manifest = stored.index, stored.manifest
    shapes = {f"shape.{spec.name}": index.shape_column(spec.name) for spec in stored.schema.arrays}
    arrays = {name: shape for name, shape in shapes.items() if shape is not None}
    arrays |= {"record": index.record, "crc32": index.crc32}
    return fingerprint(
        stored.schema, manifest.classes, manifest.splits, keys=index.keys, arrays=arrays, columns=index.columns
    )
