"""The generation before this build, opened so that records which are still right can be taken over."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precompile.errors import FormatError
from precompile.format.generation import generation_dir, read_generation, shard_path
from precompile.format.index import Column, Index, open_array
from precompile.format.manifest import Manifest
from precompile.format.record import Shape
from precompile.format.text import TextColumn
from precompile.pipeline.checksum import file_checksum
from precompile.pipeline.plan import STAT_FIELDS
from precompile.pipeline.quarantine import QUARANTINE_NAME, Quarantined, read_quarantine
from precompile.pipeline.sample import Scalar


@dataclass(frozen=True, slots=True, eq=False)
class Earlier:
    """Manifest, index and quarantine of one generation. Its shards may be damaged: a record is checked when copied."""

    root: Path
    manifest: Manifest
    index: Index
    stat: np.ndarray
    """int64 (n, 4): STAT_FIELDS of each sample's file."""
    xxh3: np.ndarray
    """uint64 (n,): XXH3-64 of each sample's file."""
    quarantined: tuple[Quarantined, ...]

    @property
    def engine_columns(self) -> tuple[str, ...]:
        """Columns that came to light in decoding; all others are the source's, which is asked again."""
        of_source = self.manifest.source["columns"]
        return tuple(spec.name for spec in self.manifest.schema.columns if spec.name not in of_source)

    def has_shard(self) -> np.ndarray:
        """bool (shards,): whether the file is there, with the right size."""
        paths = [(shard_path(self.root, shard.file), shard.bytes) for shard in self.manifest.shards]
        return np.array([path.is_file() and path.stat().st_size == size for path, size in paths], bool)

    def shapes(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """int64 (len(rows), axes) per array field."""
        found = {}
        for spec in self.manifest.schema.arrays:
            varying = self.index.shape_column(spec.name)
            fixed = np.array([spec.shape] * len(rows), np.int64).reshape(len(rows), len(spec.shape)) \
                if varying is None else varying[rows]  # fmt: skip
            found[spec.name] = fixed
        return found

    def columns(self, rows: np.ndarray) -> dict[str, Column]:
        """The engine's columns at some rows."""
        columns = {name: self.index.columns[name] for name in self.engine_columns}
        return {name: c.take(rows) if isinstance(c, TextColumn) else c[rows] for name, c in columns.items()}

    def read(self, row: int) -> np.ndarray | None:
        """The bytes of one record, uint8; None when they cannot be read or are not those that were written."""
        shard, offset, length = self.index.record[row].tolist()
        if not 0 <= shard < len(self.manifest.shards) or offset < 0 or length <= 0:
            return None
        path = shard_path(self.root, self.manifest.shards[shard].file)
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(offset)
                data = file.read(length)
        except OSError:
            return None
        return np.frombuffer(data, np.uint8) if zlib.crc32(data) == self.index.crc32[row] else None

    def facts(self, row: int) -> tuple[dict[str, Shape], dict[str, Scalar]]:
        """Shapes of the array fields and values of the engine's columns of one sample."""
        rows = np.array([row])
        shapes = {name: tuple(shape[0].tolist()) for name, shape in self.shapes(rows).items()}
        values = self.columns(rows)
        return shapes, {n: c[0] if isinstance(c, TextColumn) else c[0].item() for n, c in values.items()}


def open_earlier(root: Path, generation: int, *, check: bool = True) -> Earlier:
    """Open one generation; `check` compares the index with its checksums. Raises FormatError, DatasetNotFoundError."""
    manifest = read_generation(root, generation)
    columns = manifest.source.get("columns")
    if not isinstance(columns, list):
        raise FormatError(f"{root}: source.columns in the manifest must be a list of names, got {columns!r}")
    directory = generation_dir(root, generation)
    for name, item in manifest.index.items() if check else ():
        path = directory / name
        if not path.is_file() or file_checksum(path) != item.xxh3:
            raise FormatError(f"{path}: damaged or missing")
    return Earlier(
        root=root,
        manifest=manifest,
        index=Index(directory, manifest.schema, manifest.count),
        stat=open_array(directory / "source.stat.npy", "int64", (manifest.count, len(STAT_FIELDS))),
        xxh3=open_array(directory / "source.xxh3.npy", "uint64", (manifest.count,)),
        quarantined=tuple(read_quarantine(directory / QUARANTINE_NAME)),
    )
