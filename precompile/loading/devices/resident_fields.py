"""One field of all samples in the memory of a device: filled once, then read by position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from precompile.loading.reading.collate import Padded

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class ResidentField(Protocol):
    """Samples are numbered from 0. `place` and `put` come first, then `take`."""

    num_bytes: int
    """On the device, for all samples."""

    def place(self, device: torch.device) -> None:
        """Allocate."""
        ...

    def put(self, start: int, values: Any) -> None:
        """A batch of consecutive samples, beginning with sample `start`."""
        ...

    def take(self, positions: np.ndarray, index: torch.Tensor) -> Any:
        """The batch of these samples, int64 (n,) in host memory and on the device."""
        ...

    def collate(self, values: Sequence[Any]) -> Any:
        """Values of single samples as a batch."""
        ...


class Texts:
    """Text stays in host memory."""

    num_bytes = 0

    def __init__(self) -> None:
        self._texts: list[str] = []

    def place(self, device: torch.device) -> None:
        pass

    def put(self, start: int, values: list[str]) -> None:
        self._texts[start:] = values

    def take(self, positions: np.ndarray, index: torch.Tensor) -> list[str]:
        return [self._texts[position] for position in positions.tolist()]

    def collate(self, values: Sequence[str]) -> list[str]:
        return list(values)


class Stacked:
    """Values of one shape, as rows of the widest words that divide them, in the order that they have in memory.

    like: a batch of any size. Of one axis: numbers.
    """

    def __init__(self, like: torch.Tensor, count: int) -> None:
        self._count, self._dtype, self._shape = count, like.dtype, like.shape[1:]
        self._axes = memory_axes(like)
        row_bytes = math.prod(self._shape) * self._dtype.itemsize
        word = next(size for size in _WORDS if row_bytes % size == 0)
        self._row = row_bytes // word, _WORDS[word]
        self.num_bytes = count * row_bytes

    def place(self, device: torch.device) -> None:
        words, dtype = self._row
        self._rows = torch.empty((self._count, words), dtype=dtype, device=device)

    def put(self, start: int, values: torch.Tensor) -> None:
        if values.shape[1:] != self._shape or values.dtype != self._dtype:
            raise ValueError(f"expected {self._dtype} {tuple(self._shape)} as of the first sample, "
                             f"got {values.dtype} {tuple(values.shape[1:])}")  # fmt: skip
        self._logical(self._rows[start : start + len(values)]).copy_(values.detach())

    def take(self, positions: np.ndarray, index: torch.Tensor) -> torch.Tensor:
        return self._logical(self._rows.index_select(0, index))

    def collate(self, values: Sequence[Any]) -> torch.Tensor:
        if isinstance(values[0], torch.Tensor):
            axes = memory_axes(values[0][None])
            return in_logical_order(torch.stack([value.permute([axis - 1 for axis in axes]) for value in values]), axes)
        return torch.tensor(list(values), dtype=self._dtype, device=self._rows.device)

    def _logical(self, rows: torch.Tensor) -> torch.Tensor:
        sizes = [self._shape[axis - 1] for axis in self._axes]
        return in_logical_order(rows.view(self._dtype).view(len(rows), *sizes), self._axes)


class PaddedToLongest:
    """Values of varying shape, with zeros up to the largest of all; a batch is cut to its own largest.

    like: a batch of any size. lengths: int64 (n, axes), the sizes along the varying axes of all samples.
    varying_axes: which axes of a sample these are.
    """

    def __init__(self, like: Padded, lengths: np.ndarray, varying_axes: Sequence[int]) -> None:
        self._dtype, self._lengths = like.data.dtype, lengths
        self._axes = memory_axes(like.data)
        self._varying = [1 + axis for axis in varying_axes]
        self._squeeze = like.lengths.ndim == 1
        shape = [len(lengths), *like.data.shape[1:]]
        for axis, longest in zip(self._varying, lengths.max(axis=0).tolist()):
            shape[axis] = longest
        self._shape = [shape[axis] for axis in (0, *self._axes)]
        self.num_bytes = math.prod(shape) * self._dtype.itemsize + lengths.nbytes

    def place(self, device: torch.device) -> None:
        words = torch.zeros(self._shape, dtype=_WORDS[self._dtype.itemsize], device=device)
        self._data = in_logical_order(words, self._axes)
        lengths = torch.tensor(self._lengths, dtype=torch.int64)
        self._lengths_there = (lengths[:, 0] if self._squeeze else lengths).to(device)

    def put(self, start: int, values: Padded) -> None:
        rows = self._data[start : start + len(values.data)]
        self._cut(rows, values.data.shape).copy_(values.data.view(self._data.dtype))

    def take(self, positions: np.ndarray, index: torch.Tensor) -> Padded:
        shape = list(self._data.shape)
        for axis, longest in zip(self._varying, self._lengths[positions].max(axis=0).tolist()):
            shape[axis] = longest
        cut = self._cut(self._data, shape).permute(0, *self._axes)
        rows = in_logical_order(cut.index_select(0, index).view(self._dtype), self._axes)
        return Padded(rows, self._lengths_there.index_select(0, index))

    def collate(self, values: Sequence[torch.Tensor]) -> Padded:
        shapes = torch.tensor([value.shape for value in values])
        sizes = shapes.amax(0)[[axis - 1 for axis in self._axes]].tolist()
        rows = torch.zeros((len(values), *sizes), dtype=self._dtype, device=self._data.device)
        data = in_logical_order(rows, self._axes)
        for row, value in zip(data, values):
            self._cut(row, value.shape).copy_(value)
        lengths = shapes[:, [axis - 1 for axis in self._varying]]
        return Padded(data, (lengths[:, 0] if self._squeeze else lengths).to(data.device))

    @staticmethod
    def _cut(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return tensor[tuple(slice(size) for size in shape)]


def memory_axes(batch: torch.Tensor) -> list[int]:
    """The axes behind the first one, outermost in memory first: (2, 3, 1) for channels_last images."""
    return sorted(range(1, batch.ndim), key=batch.stride, reverse=True)


def in_logical_order(tensor: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    """The inverse of `tensor.permute(0, *axes)`."""
    return tensor.permute(0, *[1 + axes.index(axis) for axis in range(1, tensor.ndim)])
