"""Which type the cells of a column have, and what its field is called."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Container, Iterable

import numpy as np

from precompile.format.index import Column
from precompile.format.text import TextColumn

RESERVED_NAMES = frozenset({
    "audio", "image", "spectrogram", "waveform", "label", "split", "key", "sample_rate", "duration_seconds",
    "num_frames",
})  # fmt: skip
"""Fields that a compiled sample has from elsewhere."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_EXACT_DIGITS = 15
"""Integers of so many digits are exact in float64; longer ones among floats are ids, not numbers."""


def integers(cells: Iterable[str]) -> np.ndarray | None:
    """int64 (n,) when every cell is an integer as Python writes it and fits, else None; `007` and `+7` are text."""
    values = array("q")
    for cell in cells:
        if not _INTEGER.fullmatch(cell):
            return None
        try:
            values.append(int(cell))
        except OverflowError:
            return None
    return np.array(values, np.int64)


def floats(cells: Iterable[str]) -> np.ndarray | None:
    """float64 (n,), an empty cell nan, when the others are finite numbers and not all integers; else None."""
    values = array("d")
    has_fraction = False
    for cell in cells:
        if cell and not _NUMBER.fullmatch(cell):
            return None
        is_integer = cell.removeprefix("-").isdecimal()
        value = float(cell or "nan")
        if math.isinf(value) or (is_integer and len(cell) > _EXACT_DIGITS):
            return None
        has_fraction |= bool(cell) and not is_integer
        values.append(value)
    return np.array(values, np.float64) if has_fraction else None


def typed(cells: TextColumn) -> Column:
    """The cells as integers, else as floats, else as they are."""
    for convert in (integers, floats):
        values = convert(cells)
        if values is not None:
            return values
    return cells


def factorize(cells: Iterable[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """The distinct cells sorted as text, and int64 (n,) with the position of each cell among them."""
    seen: dict[str, int] = {}
    codes = np.fromiter((seen.setdefault(cell, len(seen)) for cell in cells), np.int64)
    names = tuple(sorted(seen))
    rank = np.empty(len(names), np.int64)
    rank[[seen[name] for name in names]] = np.arange(len(names))
    return names, rank[codes]


def field_name(column: str, taken: Container[str]) -> str:
    """A field name for a column: lower case, `_` for other characters, `_2` and so on when it is taken or reserved."""
    name = re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")
    if not name or not name[0].isalpha():
        name = f"column_{name}".rstrip("_")
    result, number = name, 1
    while result in taken or result in RESERVED_NAMES:
        number += 1
        result = f"{name}_{number}"
    return result
