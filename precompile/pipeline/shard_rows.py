"""What a receipt says of each record of a shard, collected while the shard is written."""

from __future__ import annotations

import zlib

import numpy as np

from precompile.format.index import Column
from precompile.format.manifest import Shard
from precompile.format.schema import Schema
from precompile.format.text import TextColumn
from precompile.pipeline.compile_input import Encoded
from precompile.pipeline.journal import Receipt
from precompile.pipeline.quarantine import Quarantined
from precompile.pipeline.sample import Scalar


class ShardRows:
    """Collects what a receipt says of each record."""

    def __init__(self, schema: Schema) -> None:
        self.samples: list[int] = []
        self.same: list[tuple[int, int]] = []
        self.copied = 0
        self._lengths: list[int] = []
        self._crcs: list[int] = []
        self._xxh3: list[int] = []
        self._axes = {spec.name: len(spec.shape) for spec in schema.arrays}
        self._shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in self._axes}
        self._columns: dict[str, list[Scalar]] = {}

    def add(self, sample: int, encoded: Encoded) -> None:
        self.samples.append(sample)
        self._lengths.append(len(encoded.record))
        self._crcs.append(zlib.crc32(encoded.record.data))
        self._xxh3.append(encoded.xxh3)
        for name, shape in encoded.shapes.items():
            self._shapes[name].append(shape)
        for name, value in encoded.columns.items():
            self._columns.setdefault(name, []).append(value)

    def receipt(
        self, task: int, shard: Shard | None, offset: np.ndarray, failed: list[tuple[int, Quarantined]], seconds: float
    ) -> Receipt:
        count = len(self.samples)
        return Receipt(
            task=task,
            shard=shard,
            samples=np.array(self.samples, np.int64),
            offset=offset,
            length=np.array(self._lengths, np.int64),
            crc32=np.array(self._crcs, np.uint32),
            xxh3=np.array(self._xxh3, np.uint64),
            shapes={
                name: np.array(shapes, np.int64).reshape(count, self._axes[name])
                for name, shapes in self._shapes.items()
            },
            columns={name: _column(values) for name, values in self._columns.items()},
            quarantined=tuple(failed),
            same=np.array(self.same, np.int64).reshape(len(self.same), 2),
            copied=self.copied,
            seconds=seconds,
        )


def _column(values: list[Scalar]) -> Column:
    if isinstance(values[0], str):
        return TextColumn.of(map(str, values))
    return np.array(values, np.float64 if isinstance(values[0], float) else np.int64)
