"""What flows through the pipeline before it is bytes: an undecoded sample, and a decoded part of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from precompile.format.index import Column
from precompile.format.schema import FieldSpec
from precompile.format.text import TextColumn

Scalar = int | float | str
Part = Path | bytes | Scalar


@dataclass(frozen=True, slots=True)
class RawSample:
    """One undecoded input."""

    key: str
    """Unique in the dataset: the path relative to SOURCE, with suffix, `/` as separator."""
    split: str
    """`train`, `val`, …; `all` when the source has no splits."""
    parts: Mapping[str, Part]
    """`image` or `audio`: a Path or the file's bytes. `label`: a class name (str) or an integer class.
    Everything else is a column of the dataset."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What an engine made of one file: an array, and the columns that came to light on the way."""

    array: np.ndarray
    columns: Mapping[str, Scalar] = field(default_factory=dict)


@runtime_checkable
class Source(Protocol):
    """A raw dataset as a finite sequence.

    Implementations are deterministic (the same order on every run), picklable, and cheap to hold for
    10^8 samples: arrays, not lists of objects. `classes` is the class map when the source knows it
    (labels are then names from it), else None and the sorted set of label names becomes the map.
    A source that has its inputs as arrays may have an attribute `listing` (a Listing): they are then planned at
    once, and not asked for one by one. The samples must say the same.
    """

    media: str
    """`image` or `audio`: which engine decodes the samples."""
    classes: tuple[str, ...] | None
    left_out: Mapping[str, int]
    """How many files were seen and not planned, by suffix or reason."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> RawSample: ...


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """The n inputs of a source as arrays, in the source's order: all that its samples say, and what lies on disk."""

    keys: TextColumn
    """Unique: the source has seen to that."""
    locations: TextColumn
    """Paths, absolute or relative to `root`; empty for an input that is not a file. May be `keys` itself."""
    root: str
    """An absolute path; empty when all locations are."""
    stat: np.ndarray
    """int64 (n, 4): STAT_FIELDS of each input when it was listed."""
    splits: tuple[str, ...]
    """Names of the splits, each once."""
    split: np.ndarray
    """int32 (n,): index into `splits`."""
    classes: tuple[str, ...] | None
    """Names of the classes; None when labels are integers. Without labels it says nothing."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    """int64 or float64 (n,), or n strings. `label`: index into `classes`, or an integer class; -1 is none."""

    def __post_init__(self) -> None:
        columns = [self.locations, self.stat, self.split, *self.columns.values()]
        assert all(len(column) == len(self) for column in columns), "columns of a listing have one length"

    def __len__(self) -> int:
        return len(self.keys)


@runtime_checkable
class Engine(Protocol):
    """Bytes of one file -> one array. Decoding and resizing are one step.

    Implementations are frozen dataclasses whose fields enter the recipe's digest; deterministic,
    picklable, single-threaded, and used by one thread at a time. Bad content raises any exception
    (ContentError by preference); the caller quarantines the sample.
    """

    def spec(self) -> FieldSpec: ...

    def load(self) -> None:
        """Import what calls will need. A worker does so before its first sample, whose time is limited."""
        ...

    def __call__(self, data: bytes) -> Decoded: ...


@runtime_checkable
class Feature(Protocol):
    """A waveform -> one array field. As an Engine: frozen, deterministic, picklable.

    waveform: float32 (channels, samples) in [-1, 1], at least one sample, finite.
    """

    def spec(self) -> FieldSpec: ...

    def load(self) -> None:
        """Import what calls will need. A worker does so before its first sample, whose time is limited."""
        ...

    def __call__(self, waveform: np.ndarray, sample_rate: int) -> np.ndarray: ...
