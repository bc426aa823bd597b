"""One sample's array fields <-> the bytes of a record, by a schema.

Fields follow each other in the schema's order, each starting at a multiple of 64; the record ends with the
last byte of its last field.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from precompile.errors import FormatError
from precompile.format import bmp
from precompile.format.schema import ARRAY_DTYPES, FieldSpec, Schema, align

Shape = tuple[int, ...]


def field_bytes(spec: FieldSpec, shape: Shape) -> int:
    """Stored size of a field whose sample has `shape`."""
    if spec.encoding == "bmp":
        return bmp.num_bytes(shape)
    return ARRAY_DTYPES[spec.dtype] * math.prod(shape)


def layout(schema: Schema, shapes: Sequence[Shape]) -> tuple[list[int], int]:
    """Offsets of the array fields within a record, and the record's length; one shape per array field."""
    offsets = []
    end = 0
    for spec, shape in zip(schema.arrays, shapes, strict=True):
        offsets.append(align(end))
        end = offsets[-1] + field_bytes(spec, shape)
    return offsets, end


def encode_field(spec: FieldSpec, array: np.ndarray) -> np.ndarray:
    """An array of the field's logical shape -> its stored bytes, uint8 (bytes,)."""
    if array.dtype.name != spec.dtype:
        raise FormatError(f"field {spec.name}: expected dtype {spec.dtype}, got {array.dtype.name}")
    spec.complete(array.shape)
    if spec.encoding == "bmp":
        return bmp.pack(array)
    stored = array.transpose(1, 2, 0) if spec.encoding == "raw_hwc" else array
    little = np.ascontiguousarray(stored, dtype=stored.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8)


def encode(schema: Schema, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The array fields of one sample -> the bytes of its record, uint8 (bytes,)."""
    specs = schema.arrays
    if set(arrays) != {spec.name for spec in specs}:
        raise FormatError(f"expected the array fields {[spec.name for spec in specs]}, got {sorted(arrays)}")
    if len(specs) == 1:
        return encode_field(specs[0], arrays[specs[0].name])
    offsets, length = layout(schema, [arrays[spec.name].shape for spec in specs])
    record = np.zeros(length, np.uint8)
    for spec, offset in zip(specs, offsets):
        stored = encode_field(spec, arrays[spec.name])
        record[offset : offset + len(stored)] = stored
    return record


def decode_field(spec: FieldSpec, data: np.ndarray, shape: Shape) -> np.ndarray:
    """Stored bytes, uint8 (..., bytes), -> arrays of logical shape (..., *shape).

    `raw` and `raw_hwc` are views of `data` (which may be read-only); `bmp` is a fresh array.
    """
    if spec.encoding == "bmp":
        return bmp.unpack(data, shape)
    typed = data.view(_little_endian(spec.dtype))
    if spec.encoding == "raw_hwc":
        channels, height, width = shape
        stored = typed.reshape(*data.shape[:-1], height, width, channels)
        return np.moveaxis(stored, -1, -3)
    return typed.reshape(*data.shape[:-1], *shape)


@functools.cache
def _little_endian(dtype: str) -> np.dtype[Any]:
    return np.dtype(dtype).newbyteorder("<")


def decode(schema: Schema, data: np.ndarray, shapes: Sequence[Shape]) -> dict[str, np.ndarray]:
    """The bytes of one record, uint8 (bytes,), -> its array fields by name (see `decode_field`)."""
    offsets, length = layout(schema, shapes)
    if len(data) != length:
        raise FormatError(f"a record of shapes {list(shapes)} must have {length} bytes, got {len(data)}")
    return {
        spec.name: decode_field(spec, data[offset : offset + field_bytes(spec, shape)], shape)
        for spec, offset, shape in zip(schema.arrays, offsets, shapes)
    }
