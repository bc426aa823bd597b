"""A field with a window, or of varying shape -> tensors: boxes stacked where all have one size, else padded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from precompile.format import bmp
from precompile.format.locate import Located
from precompile.format.schema import ARRAY_DTYPES, FieldSpec
from precompile.format.stored import Stored
from precompile.loading.reading.boxes import Boxes, as_bytes, contiguous_strides, memory_order
from precompile.loading.reading.buffers import BufferPool
from precompile.loading.reading.collate import Pad, Padded
from precompile.loading.reading.gather import BoxCopies, RowGather
from precompile.loading.reading.readers import Buffers, MakeBuffers, Plan, as_field, first_elements
from precompile.loading.reading.windows import Window


class BoxReader:
    """A FieldReader. seed: of the windows that are drawn."""

    def __init__(
        self, stored: Stored, spec: FieldSpec, make_buffers: MakeBuffers, *, window: Window | None, pad: Pad, seed: int
    ) -> None:
        self._stored, self._spec, self._window = stored, spec, window
        self._pad, self._seed = pad, seed
        self._buffers = Buffers(BufferPool if spec.encoding == "bmp" else make_buffers)
        self._pictures = Buffers(make_buffers)
        self._item_bytes = ARRAY_DTYPES[spec.dtype]
        # The form of a batch must not depend on its samples: padded wherever one may be smaller.
        outside = spec.shape if window is None else spec.shape[: -len(window.sizes)]
        self._is_padded = None in outside or (not spec.is_fixed and window is not None and window.pads)
        shape = spec.shape if window is None else (*spec.shape[: -len(window.sizes)], *window.sizes)
        self.sample_bytes = None if None in shape else self._item_bytes * math.prod(shape)  # type: ignore[arg-type]

    def plan(self, located: Located, numbers: np.ndarray, epoch: int) -> Plan:
        starts, extents, sizes = self._boxes(located.shapes, numbers, epoch)
        boxes = Boxes.of(self._spec, located, starts, extents)
        shape = (len(numbers), *sizes)
        buffer = self._buffers.take(math.prod(shape) * self._item_bytes)
        if (extents == sizes).all():
            plan = self._plan_rows(boxes, buffer, shape)
        else:
            plan = Plan(self._plan_copies(boxes, buffer, sizes).run, self._cut(buffer, shape))
        if not self._is_padded:
            return plan
        lengths = torch.from_numpy(self._lengths(extents))
        return Plan(
            plan.fill, lambda counts: [*map(Padded, plan.split(counts), lengths.split_with_sizes(list(counts)))]
        )

    def _boxes(self, shapes: np.ndarray, numbers: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Start and extent of each box, int64 (n, axes), and the sizes of a batch along the axes."""
        starts, extents = np.zeros_like(shapes), shapes
        if self._window is None:
            sizes = shapes.max(axis=0)
            varying = list(self._spec.varying_axes)
            sizes[varying] = -(-sizes[varying] // self._pad.multiple_of) * self._pad.multiple_of
            return starts, extents, sizes.tolist()
        wanted = np.array(self._window.sizes)
        windowed = slice(-len(wanted), None)
        if not self._window.pads and (too_small := (shapes[:, windowed] < wanted).any(axis=1)).any():
            raise self._too_small(int(numbers[too_small][0]), shapes[too_small][0].tolist())
        room = np.maximum(shapes[:, windowed] - wanted, 0)
        starts[:, windowed] = self._window.starts(room, numbers, seed=self._seed, epoch=epoch)
        extents = shapes.copy()
        extents[:, windowed] = np.minimum(shapes[:, windowed], wanted)
        sizes = extents.max(axis=0)
        sizes[windowed] = wanted
        return starts, extents, sizes.tolist()

    def _too_small(self, number: int, shape: list[int]) -> ValueError:
        return ValueError(
            f"sample {number} ({self._stored.index.keys[number]}): {self._spec.name} of shape {tuple(shape)} is "
            f"smaller than {self._window}; choose a smaller window, or compile larger samples (--size, --fit pad)"
        )

    def _lengths(self, extents: np.ndarray) -> np.ndarray:
        lengths = extents[:, list(self._spec.varying_axes)]
        return lengths[:, 0].copy() if lengths.shape[1] == 1 else lengths

    def _plan_rows(self, boxes: Boxes, buffer: np.ndarray, shape: tuple[int, ...]) -> Plan:
        places, run_bytes = boxes.rows()
        gather = RowGather(self._stored.shards, run_bytes, alignment=self._item_bytes).plan(places, buffer)
        if self._spec.encoding != "bmp":
            return Plan(gather, self._cut(buffer, shape))
        images = self._pictures.take(math.prod(shape))
        batch, channels, height, width = shape

        def fill() -> None:
            gather()
            pixels = buffer[: math.prod(shape)].reshape(batch, height, width, channels)
            bmp.planes_from_pixels(pixels, images[: math.prod(shape)].reshape(shape))

        return Plan(fill, lambda counts: first_elements(images, torch.uint8, shape).split_with_sizes(list(counts)))

    def _cut(self, buffer: np.ndarray, shape: tuple[int, ...]) -> Any:
        return lambda counts: as_field(self._spec, buffer, shape).split_with_sizes(list(counts))

    def _plan_copies(self, boxes: Boxes, buffer: np.ndarray, sizes: Sequence[int]) -> BoxCopies:
        """Boxes into the front corner of their place in the buffer; what is left of it becomes the padding."""
        sizes = [sizes[axis] for axis in memory_order(self._spec)]
        strides = contiguous_strides(sizes, self._item_bytes)
        sample_bytes = math.prod(sizes) * self._item_bytes
        copies = BoxCopies(self._stored.shards, buffer)
        value = self._pad.value
        if value:
            typed = buffer[: len(boxes.places) * sample_bytes].view(self._spec.dtype)
            copies.background = lambda: typed.fill(value)
        for number, (place, extents) in enumerate(zip(boxes.begins().tolist(), boxes.extents.tolist())):
            offset = number * sample_bytes
            copies.copy(place, boxes.strided(number), offset, as_bytes(extents, strides, self._item_bytes))
            for axis, extent in enumerate(() if value else extents):
                if extent < sizes[axis]:
                    behind = [*extents[:axis], sizes[axis] - extent, *sizes[axis + 1 :]]
                    copies.zero(offset + extent * strides[axis], as_bytes(behind, strides, self._item_bytes))
        return copies
