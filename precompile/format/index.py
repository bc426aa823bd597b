"""Per-sample columns as memory-mapped .npy files: opening costs the same for 10 and for 10^8 samples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from precompile.errors import FormatError
from precompile.format.record import Shape
from precompile.format.schema import TEXT, Schema
from precompile.format.text import TextColumn

Column = np.ndarray | TextColumn


def open_array(path: Path, dtype: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """Map one .npy file, read-only. Raises FormatError when it is missing, damaged, or not of that dtype and shape."""
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    except FileNotFoundError:
        raise FormatError(f"{path}: the index file is missing; restore it or build again") from None
    except (ValueError, EOFError, SyntaxError, TypeError, OverflowError, MemoryError, OSError, UnicodeError) as error:
        # mmap refuses files without rows; those are read plainly
        empty = _open_empty(path)
        if empty is None:
            raise FormatError(f"{path}: the index file is damaged ({error}); restore it or build again") from None
        array = empty
    expected = np.dtype(dtype).newbyteorder("<")
    if (
        array.dtype != expected
        or array.ndim != len(shape)
        or any(s not in (None, got) for s, got in zip(shape, array.shape))
    ):
        raise FormatError(
            f"{path}: expected {expected.name} of shape {shape}, found {array.dtype} of shape {array.shape}"
        )
    return array


def _open_empty(path: Path) -> np.ndarray | None:
    try:
        array: np.ndarray = np.load(path, allow_pickle=False) if path.stat().st_size <= 256 else np.empty(1)
    except (ValueError, EOFError, SyntaxError, TypeError, OSError, UnicodeError):
        return None
    return array if array.size == 0 else None


def open_text(directory: Path, name: str, count: int) -> TextColumn:
    offsets = open_array(directory / f"{name}.offsets.npy", "int64", (count + 1,))
    data = open_array(directory / f"{name}.data.npy", "uint8", (None,))
    if offsets[0] < 0 or offsets[-1] > len(data):
        raise FormatError(f"{directory / name}.offsets.npy: offsets reach beyond the {len(data)} bytes of text")
    return TextColumn(offsets, data)


def save_column(directory: Path, name: str, column: Column) -> None:
    """Write one column (an array, or text as `.offsets` and `.data`), durably."""
    parts = {name: column}
    if isinstance(column, TextColumn):
        parts = {f"{name}.offsets": column.offsets - column.offsets[0],
                 f"{name}.data": column.data[column.offsets[0] : column.offsets[-1]]}  # fmt: skip
    for part, array in parts.items():
        with (directory / f"{part}.npy").open("wb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())


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
        return [
            spec.complete(tuple(shape[index].tolist())) if isinstance(shape, np.ndarray) else shape
            for spec, shape in zip(self._schema.arrays, self._shapes)
        ]

    def shape_column(self, field: str) -> np.ndarray | None:
        """int64 (n, axes) of a varying array field, None for a fixed one."""
        position = [spec.name for spec in self._schema.arrays].index(field)
        shape = self._shapes[position]
        return shape if isinstance(shape, np.ndarray) else None
