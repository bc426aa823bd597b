"""One array field of many samples -> tensors: which rows or boxes to copy, and what their batch looks like."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from precompile.errors import FormatError
from precompile.format import bmp, record
from precompile.format.locate import Located
from precompile.format.schema import FieldSpec
from precompile.format.stored import Stored
from precompile.loading.reading.boxes import memory_order
from precompile.loading.reading.buffers import BufferPool, HostBuffers
from precompile.loading.reading.collate import Padded, pad
from precompile.loading.reading.gather import RowGather

MakeBuffers = Callable[[int], HostBuffers]
"""Gives reusable host memory, by bytes of a buffer."""


@dataclass(slots=True)
class Plan:
    """One field of some samples, planned: `fill` copies in any thread, then `split` cuts batches."""

    fill: Callable[[], object]
    split: Callable[[Sequence[int]], Sequence[Any]]
    """Sizes of batches, which add up to the samples -> a tensor or Padded for each."""


class FieldReader(Protocol):
    """Plans one array field. Used by one thread at a time."""

    @property
    def sample_bytes(self) -> int | None:
        """Bytes in a buffer, where every sample needs equally many; None: one batch has to be planned at a time."""
        ...

    def plan(self, located: Located, numbers: np.ndarray, epoch: int) -> Plan: ...


class StackedReader:
    """A field of fixed shape: whole rows, stacked."""

    def __init__(self, stored: Stored, spec: FieldSpec, make_buffers: MakeBuffers) -> None:
        assert spec.is_fixed
        self._stored, self._spec = stored, spec
        self._shape: record.Shape = spec.complete(spec.shape)  # type: ignore[arg-type]
        row_bytes = record.field_bytes(spec, self._shape)
        self.sample_bytes = row_bytes
        self._gather = RowGather(stored.shards, row_bytes)
        self._buffers = Buffers(BufferPool if spec.encoding == "bmp" else make_buffers)
        self._pictures = Buffers(make_buffers)

    def plan(self, located: Located, numbers: np.ndarray, epoch: int) -> Plan:
        buffer = self._buffers.take(len(numbers) * self._gather.row_bytes)
        if self._spec.encoding == "bmp":
            return self._plan_bmp(located.places, buffer)
        spec, shape = self._spec, (len(numbers), *self._shape)
        return Plan(
            self._gather.plan(located.places, buffer),
            lambda sizes: as_field(spec, buffer, shape).split_with_sizes(list(sizes)),
        )

    def _plan_bmp(self, places: np.ndarray, files: np.ndarray) -> Plan:
        shape = (len(places), *self._shape)
        images = self._pictures.take(math.prod(shape))
        gather = self._gather.plan(places, files)

        def fill() -> None:
            gather()
            rows = files[: len(places) * self._gather.row_bytes].reshape(len(places), -1)
            try:
                bmp.unpack(rows, self._shape, images[: math.prod(shape)])
            except FormatError as error:
                raise self._stored.undecodable(f"a batch of {len(places)} samples", error) from None

        return Plan(fill, lambda sizes: first_elements(images, torch.uint8, shape).split_with_sizes(list(sizes)))


class SampleReader:
    """bmp pictures of varying size: each decoded, then padded."""

    sample_bytes = None

    def __init__(self, stored: Stored, spec: FieldSpec) -> None:
        self._stored, self._spec = stored, spec

    def plan(self, located: Located, numbers: np.ndarray, epoch: int) -> Plan:
        made: list[Padded] = []

        def fill() -> None:
            arrays = [self._stored.array(number, self._spec.name) for number in numbers.tolist()]
            made.append(pad(arrays, self._spec.varying_axes))

        return Plan(fill, lambda sizes: made)


class Buffers:
    """Reusable host memory that grows with what is asked for."""

    def __init__(self, make_buffers: MakeBuffers) -> None:
        self._make = make_buffers
        self._num_bytes = 0

    def take(self, num_bytes: int) -> np.ndarray:
        """A uint8 array of at least num_bytes that nobody uses."""
        if num_bytes > self._num_bytes:
            # Padded batches differ in size; some spare room ends the growing soon.
            size = num_bytes + num_bytes // 8 if self._num_bytes else num_bytes
            self._buffers = self._make(size)
            self._num_bytes = size
        return self._buffers.take()


def as_field(spec: FieldSpec, buffer: np.ndarray, shape: tuple[int, ...]) -> torch.Tensor:
    """The front of a buffer, in memory order, as a tensor of `shape`, (batch, axes in logical order). No copy."""
    order = memory_order(spec)
    typed = first_elements(buffer, getattr(torch, spec.dtype), (shape[0], *[shape[1 + axis] for axis in order]))
    return typed if order == sorted(order) else typed.permute(0, *[1 + order.index(axis) for axis in sorted(order)])


def first_elements(buffer: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """The front of a buffer as a C-contiguous tensor."""
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(buffer)[:num_bytes].view(dtype).view(shape)
