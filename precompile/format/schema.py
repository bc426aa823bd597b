"""What one sample is: pure values that both sides of the house agree on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from precompile.errors import FormatError

ALIGNMENT = 64
"""Bytes. Shards, records and the array fields inside a record start at multiples of it."""

ARRAY_DTYPES: Mapping[str, int] = {
    "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
"""The closed table of element types, with bytes per element; all little-endian."""

TEXT = "utf8"
"""The dtype of a column of strings (only for shape `()`)."""

ENCODINGS = ("raw", "raw_hwc", "bmp")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_MAX_AXES = 16
_BMP_CHANNELS = (None, 1, 3, 4)


def align(size: int) -> int:
    """The smallest multiple of ALIGNMENT that is at least `size`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def checked_text(text: str) -> str:
    """Text that can be written as UTF-8; raises FormatError for lone surrogates other than those of file names."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise FormatError(f"expected text that UTF-8 can hold, got {text!r}") from None
    return text


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One named part of a sample.

    Shape `()` is a column, held in the index; any other shape is an array field, held in the record.
    Raises FormatError when a value is outside its table.
    """

    name: str
    """Lower-case identifier, such as `image`, `spectrogram`, `label`."""
    dtype: str
    """A key of ARRAY_DTYPES, or `utf8` for a column of text."""
    shape: tuple[int | None, ...]
    """Sizes of the axes; None varies from sample to sample. An image is (channels, height, width)."""
    encoding: str = "raw"
    """`raw`: C-contiguous. `raw_hwc`: (height, width, channels) in memory. `bmp`: a whole .bmp file."""
    unit: str = ""
    """Free text for people: `ln power`, `s`, `Hz`."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise FormatError(f"a field name must match {_NAME.pattern}, got name={self.name!r}")
        if self.dtype != TEXT and self.dtype not in ARRAY_DTYPES:
            raise FormatError(
                f"field {self.name}: dtype must be one of {', '.join(ARRAY_DTYPES)}, {TEXT}, got {self.dtype!r}"
            )
        if self.dtype == TEXT and self.shape:
            raise FormatError(f"field {self.name}: text must have shape (), got shape={self.shape}")
        if len(self.shape) > _MAX_AXES:
            raise FormatError(f"field {self.name}: a shape has at most {_MAX_AXES} axes, got {len(self.shape)}")
        for size in self.shape:
            if size is not None and (type(size) is not int or not 1 <= size < 2**40):
                raise FormatError(f"field {self.name}: sizes must be positive integers or None, got shape={self.shape}")
        if self.encoding not in ENCODINGS:
            raise FormatError(
                f"field {self.name}: encoding must be one of {', '.join(ENCODINGS)}, got {self.encoding!r}"
            )
        if self.encoding != "raw" and (self.dtype != "uint8" or len(self.shape) != 3):
            raise FormatError(f"field {self.name}: encoding {self.encoding} needs uint8 (channels, height, width), "
                              f"got {self.dtype} {self.shape}")  # fmt: skip
        if self.encoding == "bmp" and self.shape[0] not in _BMP_CHANNELS:
            raise FormatError(f"field {self.name}: a bmp image must have 1, 3 or 4 channels, got shape={self.shape}")
        checked_text(self.unit)

    @property
    def is_column(self) -> bool:
        return not self.shape

    @property
    def is_fixed(self) -> bool:
        """Whether every sample has the same shape."""
        return None not in self.shape

    @property
    def varying_axes(self) -> tuple[int, ...]:
        return tuple(axis for axis, size in enumerate(self.shape) if size is None)

    def complete(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The full shape of one sample, given its sizes along all axes; checks them against the spec."""
        if len(sizes) != len(self.shape) or any(s is not None and s != given for s, given in zip(self.shape, sizes)):
            raise FormatError(f"field {self.name}: shape {sizes} does not fit the declared {self.shape}")
        if any(size < 1 for size in sizes):
            raise FormatError(f"field {self.name}: expected at least one element, got shape {sizes}")
        return sizes

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "encoding": self.encoding,
            "unit": self.unit,
        }

    @classmethod
    def from_json(cls, value: Any) -> FieldSpec:
        try:
            return cls(
                str(value["name"]),
                str(value["dtype"]),
                tuple(value["shape"]),
                str(value["encoding"]),
                str(value["unit"]),
            )
        except (KeyError, TypeError) as error:
            raise FormatError(f"a field needs name, dtype, shape, encoding and unit, got {value!r}") from error


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of a dataset in their stored order; names are unique, at least one is an array."""

    fields: tuple[FieldSpec, ...]

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if len(set(names)) != len(names):
            raise FormatError(f"field names must be unique, got {names}")
        if not self.arrays:
            raise FormatError(f"a schema needs at least one array field, got {names}")

    @property
    def arrays(self) -> tuple[FieldSpec, ...]:
        return tuple(field for field in self.fields if not field.is_column)

    @property
    def columns(self) -> tuple[FieldSpec, ...]:
        return tuple(field for field in self.fields if field.is_column)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @property
    def is_fixed(self) -> bool:
        """Whether all records have one layout and one length: the fast case."""
        return all(field.is_fixed for field in self.arrays)

    def __getitem__(self, name: str) -> FieldSpec:
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"no field {name!r}; choose from {', '.join(self.names)}")

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[FieldSpec]:
        return iter(self.fields)

    def to_json(self) -> list[dict[str, Any]]:
        return [field.to_json() for field in self.fields]

    @classmethod
    def from_json(cls, value: Any) -> Schema:
        if not isinstance(value, list):
            raise FormatError(f"a schema must be a list of fields, got {type(value).__name__}")
        return cls(tuple(FieldSpec.from_json(item) for item in value))
