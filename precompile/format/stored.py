"""One generation, opened: sample number -> bytes. The whole read path below torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from precompile.errors import FormatError
from precompile.format import record
from precompile.format.generation import generation_dir, read_current, read_generation, shard_path
from precompile.format.index import Index
from precompile.format.lease import take_lease
from precompile.format.locate import Located, locate_fields, locate_records
from precompile.format.manifest import Manifest
from precompile.format.schema import ALIGNMENT
from precompile.format.shards import ShardMap

_ATTEMPTS = 4
"""At opening, when the generation is replaced and removed meanwhile."""


class Stored:
    """A generation's manifest, index and shards. Read-only; safe across threads and fork; not picklable.

    Raises DatasetNotFoundError or FormatError. Every record's place is checked against the shards' sizes
    before it is read, so a damaged index is an error and not a crash.

    lease: keeps the generation from being removed, in the life of this object; None where there are no leases.
    """

    def __init__(self, root: Path, generation: int | None = None) -> None:
        self.root = root
        for attempts_left in reversed(range(_ATTEMPTS)):
            self.manifest: Manifest = read_generation(root, generation)
            self.lease = take_lease(self._directory)
            try:
                self._open()
                break
            except FormatError:
                if not attempts_left or not self._is_gone(generation):
                    raise
        self.schema = self.manifest.schema
        self._arrays = self.schema.arrays
        self._positions = {spec.name: position for position, spec in enumerate(self._arrays)}
        self._fixed_shapes: list[record.Shape] = []
        self._fixed = None
        if self.schema.is_fixed:
            self._fixed_shapes = [spec.shape for spec in self._arrays]  # type: ignore[misc]
            self._fixed = record.layout(self.schema, self._fixed_shapes)

    def _open(self) -> None:
        shards = self.manifest.shards
        self.index = Index(self._directory, self.manifest.schema, self.manifest.count)
        self.shards = ShardMap(self.shard_paths, [shard.bytes for shard in shards])

    @property
    def shard_paths(self) -> list[Path]:
        return [shard_path(self.root, shard.file) for shard in self.manifest.shards]

    @property
    def _directory(self) -> Path:
        return generation_dir(self.root, self.manifest.generation)

    def _is_gone(self, wanted: int | None) -> bool:
        """Whether the generation was removed between reading its number and opening its files."""
        replaced = wanted is None and read_current(self.root).generation != self.manifest.generation
        return replaced or not self._directory.exists()

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """int64 (n,) sample numbers -> int64 (n,) places of their records in the shard map."""
        return self.extents(numbers)[0]

    def extents(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64 (n,) sample numbers -> places and lengths in bytes of their records, int64 (n,) each."""
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.manifest.count:
            raise IndexError(
                f"sample numbers must be from 0 to {self.manifest.count - 1}, got {numbers.min()} to {numbers.max()}"
            )
        found = locate_records(self.index, self.shards, numbers)
        if found is None or (self._fixed is not None and (found[1] != self._fixed[1]).any()):
            raise self._outside()
        return found

    def fields(self, numbers: np.ndarray) -> dict[str, Located]:
        """int64 (n,) sample numbers -> where each array field lies, by name."""
        places, lengths = self.extents(numbers)
        if self._fixed is not None:
            shapes = [
                np.broadcast_to(np.array(shape, np.int64), (len(numbers), len(shape))) for shape in self._fixed_shapes
            ]
            return {spec.name: Located(places + offset, shape)
                    for spec, offset, shape in zip(self._arrays, self._fixed[0], shapes)}  # fmt: skip
        found = locate_fields(self.schema, self.index, numbers, places, lengths)
        if found is None:
            for number in numbers.tolist():
                self.index.shapes(number)  # raises where a shape is what is wrong
            raise self._outside()
        return found

    def record(self, index: int) -> np.ndarray:
        """The bytes of one sample's record, a read-only uint8 view."""
        if not 0 <= index < self.manifest.count:
            raise IndexError(f"a sample number must be from 0 to {self.manifest.count - 1}, got {index}")
        shard, offset, length = self.index.record[index].tolist()
        if not 0 <= shard < len(self.shards.sizes) or offset < 0 or offset % ALIGNMENT or length <= 0:
            raise self._outside()
        if offset + length > self.shards.sizes[shard]:
            raise self._outside()
        return self.shards.view(int(self.shards.starts[shard]) + offset, length)

    def arrays(self, index: int) -> dict[str, np.ndarray]:
        """The array fields of one sample; read-only views, but for bmp (see `record.decode_field`)."""
        data, shapes = self.record(index), self.index.shapes(index)
        try:
            return record.decode(self.schema, data, shapes)
        except FormatError as error:
            raise self.undecodable(f"sample {index}", error) from None

    def array(self, index: int, name: str) -> np.ndarray:
        """One array field of one sample."""
        data = self.record(index)
        shapes = self._fixed_shapes or self.index.shapes(index)
        offsets, length = self._fixed or record.layout(self.schema, shapes)
        if length != len(data):
            raise self._outside()
        position = self._positions[name]
        spec, offset, shape = self._arrays[position], offsets[position], shapes[position]
        try:
            return record.decode_field(spec, data[offset : offset + record.field_bytes(spec, shape)], shape)
        except FormatError as error:
            raise self.undecodable(f"sample {index}", error) from None

    def field_offset(self, name: str) -> int:
        """Where a field starts within every record; only for schemas of fixed shape."""
        assert self._fixed is not None
        return self._fixed[0][self._positions[name]]

    def _outside(self) -> FormatError:
        return FormatError(f"{self.index.directory / 'record.npy'}: a record does not fit its shard or its schema; "
                           f"run `precompile verify {self.root} --full`")  # fmt: skip

    def undecodable(self, what: str, error: FormatError) -> FormatError:
        """The error of some records, with where to look: the fault may be in the index or in a shard."""
        return FormatError(f"{self.root}: {what}: {error}; run `precompile verify {self.root} --full`")
