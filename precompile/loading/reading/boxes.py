"""Boxes of array fields as bytes: what part of each stored sample is wanted, and where its bytes lie."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from precompile.format import bmp
from precompile.format.locate import Located
from precompile.format.schema import ARRAY_DTYPES, FieldSpec
from precompile.loading.reading.gather import Strided


@dataclass(frozen=True, slots=True)
class Boxes:
    """A box out of each of n samples of one field, in the order of axes in memory.

    places: int64 (n,), of the first byte of each sample's field.
    strides: int64 (n, axes), in bytes; the innermost is the item size.
    starts, extents: int64 (n, axes), in elements.
    """

    places: np.ndarray
    strides: np.ndarray
    starts: np.ndarray
    extents: np.ndarray
    item_bytes: int

    @classmethod
    def of(cls, spec: FieldSpec, located: Located, starts: np.ndarray, extents: np.ndarray) -> Boxes:
        """starts, extents: int64 (n, axes) in the order of the field's logical axes."""
        order = memory_order(spec)
        item_bytes = ARRAY_DTYPES[spec.dtype]
        shapes = located.shapes[:, order]
        strides = np.empty_like(shapes)
        strides[:, -1] = item_bytes
        for axis in reversed(range(shapes.shape[1] - 1)):
            strides[:, axis] = strides[:, axis + 1] * shapes[:, axis + 1]
        places = located.places
        if spec.encoding == "bmp":
            top, strides[:, 0] = bmp.place_rows(located.shapes)
            places = places + top
        return cls(places, strides, starts[:, order], extents[:, order], item_bytes)

    def begins(self) -> np.ndarray:
        """int64 (n,): the place of each box's first byte."""
        begins: np.ndarray = self.places + (self.starts * self.strides).sum(axis=1)
        return begins

    def are_equal_in_size(self) -> bool:
        return bool((self.extents == self.extents[:1]).all())

    def rows(self) -> tuple[np.ndarray, int]:
        """Boxes of one size as contiguous runs: their places, int64 (n * runs in a box,), and the bytes of a run."""
        assert self.are_equal_in_size()
        extents = self.extents[0].tolist()
        run, axis = self.item_bytes, len(extents)
        while axis and (self.strides[:, axis - 1] == run).all():
            axis -= 1
            run *= extents[axis]
        places = self.begins()
        for outer in range(axis):
            steps = np.arange(extents[outer]) * self.strides[:, outer, None]  # (n, extent), or (1, extent) broadcast
            places = places[..., None] + steps.reshape(len(steps), *[1] * (places.ndim - 1), -1)
        return places.reshape(-1), run

    def strided(self, number: int) -> Strided:
        """One box as bytes."""
        extents, strides = self.extents[number].tolist(), self.strides[number].tolist()
        return as_bytes(extents, strides, self.item_bytes)


def memory_order(spec: FieldSpec) -> list[int]:
    """Logical axes in the order in which they lie in memory, outermost first."""
    axes = list(range(len(spec.shape)))
    return [1, 2, 0] if spec.encoding in ("raw_hwc", "bmp") else axes


def contiguous_strides(sizes: list[int], item_bytes: int) -> list[int]:
    return [item_bytes * math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def as_bytes(sizes: list[int], strides: list[int], item_bytes: int) -> Strided:
    """A box of elements whose innermost axis is contiguous -> the same box of bytes."""
    return Strided([*sizes[:-1], sizes[-1] * item_bytes], [*strides[:-1], 1])
