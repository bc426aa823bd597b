"""Per-sample columns as memory-mapped .npy files: opening costs the same for 10 and for 10^8 samples."""

from __future__ import annotations

import math
import mmap
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from precompile.errors import FormatError
from precompile.format.files import cannot_be_read, open_regular
from precompile.format.record import Shape
from precompile.format.schema import TEXT, Schema
from precompile.format.text import TextColumn

Column = np.ndarray | TextColumn

_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '([<>|][biuf]\d)', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,19}, ?)*(?:\d{1,19})?)\), \} *\n?"
)
"""What numpy writes for version 1.0. A closed grammar: a damaged header is never evaluated."""


def open_array(path: Path, dtype: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """Map one .npy file, read-only. Raises FormatError when it is missing, damaged, or not of that dtype and shape."""
    expected = np.dtype(dtype).newbyteorder("<")
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        raise FormatError(f"{path}: the index file is missing; restore it or build again") from None
    try:
        found, found_shape, start = _read_header(descriptor, path)
        fits = len(found_shape) == len(shape) and all(size in (None, got) for size, got in zip(shape, found_shape))
        if found != expected or not fits:
            raise FormatError(
                f"{path}: expected {expected.name} of shape {shape}, found {found} of shape {found_shape}"
            )
        wanted, num_bytes = start + expected.itemsize * math.prod(found_shape), os.fstat(descriptor).st_size
        if num_bytes != wanted:
            raise FormatError(
                f"{path}: expected {wanted} bytes, found {num_bytes}; restore the index file or build again"
            )
        if 0 in found_shape:
            return np.empty(found_shape, expected)
        mapped = mmap.mmap(descriptor, wanted, access=mmap.ACCESS_READ)
        return np.frombuffer(mapped, expected, offset=start).reshape(found_shape)
    except OSError as error:
        raise cannot_be_read(path, error) from None
    finally:
        os.close(descriptor)


def _read_header(descriptor: int, path: Path) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """dtype, shape, and where the values start."""
    begin = os.read(descriptor, len(_MAGIC) + 2)
    num_bytes = int.from_bytes(begin[len(_MAGIC) :], "little")
    text = os.read(descriptor, num_bytes)
    header = _HEADER.fullmatch(text)
    if begin[: len(_MAGIC)] != _MAGIC or len(text) != num_bytes or header is None:
        raise FormatError(f"{path}: not an .npy file of version 1.0; restore the index file or build again")
    descr, fortran_order, sizes = header.groups()
    if fortran_order == b"True":
        raise FormatError(f"{path}: expected values in C order, found Fortran order; build again")
    try:
        dtype = np.dtype(descr.decode())
    except TypeError:
        raise FormatError(f"{path}: the index file has an unknown dtype {descr!r}; restore it or build again") from None
    return dtype, tuple(int(size) for size in sizes.split(b",") if size.strip()), len(begin) + num_bytes


def open_text(directory: Path, name: str, count: int) -> TextColumn:
    offsets = open_array(directory / f"{name}.offsets.npy", "int64", (count + 1,))
    data = open_array(directory / f"{name}.data.npy", "uint8", (None,))
    if offsets[0] != 0 or offsets[-1] != len(data):
        raise FormatError(f"{directory / name}.offsets.npy: offsets from {offsets[0]} to {offsets[-1]} do not fit "
                          f"the {len(data)} bytes of text; restore both files or build again")  # fmt: skip
    return TextColumn(offsets, data, directory / f"{name}.offsets.npy")


def save_column(directory: Path, name: str, column: Column) -> None:
    """Write one column: an array, or text as `.offsets` and `.data`. It is durable once the caller syncs the files."""
    parts = {name: column}
    if isinstance(column, TextColumn):
        parts = {f"{name}.offsets": column.offsets - column.offsets[0],
                 f"{name}.data": column.data[column.offsets[0] : column.offsets[-1]]}  # fmt: skip
    for part, array in parts.items():
        with (directory / f"{part}.npy").open("wb") as file:
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)


class Index:
    """The columns of a generation, mapped. Row i is sample i, in source order (splits one after another).

    record: int64 (n, 3): shard number, byte offset in the shard, bytes.
    crc32: uint32 (n,), of the record's bytes.
    keys: n strings.
    """

    def __init__(self, directory: Path, schema: Schema, count: int) -> None:
        self.directory = directory
        self.count = count
        self.record = open_array(directory / "record.npy", "int64", (count, 3))
        self.crc32 = open_array(directory / "crc32.npy", "uint32", (count,))
        self.keys = open_text(directory, "key", count)
        self.columns: dict[str, Column] = {}
        for spec in schema.columns:
            name = f"column.{spec.name}"
            is_text = spec.dtype == TEXT
            self.columns[spec.name] = (
                open_text(directory, name, count)
                if is_text
                else open_array(directory / f"{name}.npy", spec.dtype, (count,))
            )
        self._shapes: list[Any] = [
            spec.shape
            if spec.is_fixed
            else open_array(directory / f"shape.{spec.name}.npy", "int64", (count, len(spec.shape)))
            for spec in schema.arrays
        ]
        self._schema = schema

    def shapes(self, index: int) -> list[Shape]:
        """The shapes of sample `index`, one per array field. Raises FormatError when they contradict the schema."""
        try:
            return [
                spec.complete(tuple(shape[index].tolist())) if isinstance(shape, np.ndarray) else shape
                for spec, shape in zip(self._schema.arrays, self._shapes)
            ]
        except FormatError as error:
            raise FormatError(f"{self.directory}: shape of sample {index}: {error}") from None

    def shape_column(self, field: str) -> np.ndarray | None:
        """int64 (n, axes) of a varying array field, None for a fixed one."""
        position = [spec.name for spec in self._schema.arrays].index(field)
        shape = self._shapes[position]
        return shape if isinstance(shape, np.ndarray) else None
