"""Where array fields of many samples lie, checked, without a step per sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precompile.format import bmp
from precompile.format.index import Index
from precompile.format.schema import ALIGNMENT, ARRAY_DTYPES, FieldSpec, Schema
from precompile.format.shards import ShardMap


@dataclass(frozen=True, slots=True)
class Located:
    """One array field of n samples."""

    places: np.ndarray
    """int64 (n,): where the field starts in the shard map; multiples of 64."""
    shapes: np.ndarray
    """int64 (n, axes)."""


def locate_records(index: Index, shards: ShardMap, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """int64 (n,) sample numbers below the count -> places and lengths of their records, int64 (n,) each.

    None when one of them does not lie in its shard, which only a damaged index says.
    """
    shard, offset, length = index.record.take(numbers, axis=0, mode="clip").T
    if not numbers.size:
        return offset, length
    if int(shard.view(np.uint64).max()) >= len(shards.sizes):
        return None
    seen = int(np.bitwise_or.reduce(offset))  # one look at all signs and low bits
    if seen < 0 or seen % ALIGNMENT or int(length.min()) < 1 or (offset > shards.sizes.take(shard) - length).any():
        return None
    return shards.starts.take(shard) + offset, length


def locate_fields(
    schema: Schema, index: Index, numbers: np.ndarray, places: np.ndarray, lengths: np.ndarray
) -> dict[str, Located] | None:
    """Records -> their array fields by name; None when the index's shapes do not fit the schema or the records."""
    found: dict[str, Located] = {}
    end: np.ndarray | int = 0
    for spec in schema.arrays:
        shapes = _shapes(spec, index, numbers)
        if shapes is None:
            return None
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        found[spec.name] = Located(places + offset, shapes)
        end = offset + fields_bytes(spec, shapes)
    return found if np.array_equal(np.broadcast_to(end, lengths.shape), lengths) else None


def _shapes(spec: FieldSpec, index: Index, numbers: np.ndarray) -> np.ndarray | None:
    column = index.shape_column(spec.name)
    if column is None:
        return np.broadcast_to(np.array(spec.shape, np.int64), (len(numbers), len(spec.shape)))
    shapes = column.take(numbers, axis=0, mode="clip")
    fixed = [axis for axis, size in enumerate(spec.shape) if size is not None]
    # 2**40: the bound of FieldSpec; it keeps a damaged index from wrapping round in the products below.
    if (
        (shapes < 1).any()
        or (shapes >= 1 << 40).any()
        or np.prod(shapes, axis=1, dtype=np.float64).max(initial=0) > 2**50
    ):
        return None
    if spec.encoding == "bmp" and not np.isin(shapes[:, 0], (1, 3, 4)).all():
        return None
    if (shapes[:, fixed] != np.array([spec.shape[axis] for axis in fixed], np.int64)).any():
        return None
    return shapes


def fields_bytes(spec: FieldSpec, shapes: np.ndarray) -> np.ndarray:
    """int64 (n, axes) shapes of an array field -> its stored sizes, int64 (n,)."""
    if spec.encoding == "bmp":
        top, step = bmp.place_rows(shapes)
        ends: np.ndarray = top - step
        return ends
    num_bytes: np.ndarray = ARRAY_DTYPES[spec.dtype] * np.prod(shapes, axis=1, dtype=np.int64)
    return num_bytes
