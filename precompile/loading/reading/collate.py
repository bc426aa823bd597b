"""Samples -> a batch: stack equal shapes, pad varying ones. Copies by numpy only, which never starts a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from precompile.format.schema import FieldSpec
from precompile.loading.reading.buffers import fresh_array

MakeArray = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
"""Gives a C-contiguous array of a shape and dtype."""


@dataclass(frozen=True, slots=True)
class Pad:
    """How samples of varying shape become one batch, as the Loader's `collate`."""

    value: float = 0.0
    """What stands behind each sample's end; the silence of log features is not 0."""
    multiple_of: int = 1
    """The sizes of a batch along varying axes are rounded up to it, such as 8 or 64: fewer different shapes."""

    def __post_init__(self) -> None:
        if type(self.multiple_of) is not int or self.multiple_of < 1:
            raise ValueError(f"multiple_of must be an integer of at least 1, got multiple_of={self.multiple_of!r}")
        if not isinstance(self.value, int | float):
            raise ValueError(f"value must be a number, got value={self.value!r}")

    def check(self, spec: FieldSpec) -> None:
        """Raises ValueError for a field that cannot be padded so."""
        if spec.encoding == "bmp" and self != Pad():
            raise ValueError(f"Pad is for fields of encoding raw or raw_hwc, got {spec.name} of encoding bmp")
        try:
            fits = bool(np.array(self.value).astype(spec.dtype) == self.value) or np.dtype(spec.dtype).kind == "f"
        except (OverflowError, ValueError):
            fits = False
        if not fits:
            raise ValueError(f"the padding of field {spec.name} must be a value of {spec.dtype}, got {self.value!r}")


class Padded(NamedTuple):
    """A batch of samples of varying shape."""

    data: torch.Tensor
    """(batch, *largest shape), zeros (or Pad's value) behind each sample's end."""
    lengths: torch.Tensor
    """int64: each sample's true size along the varying axis, (batch,), or along several, (batch, axes)."""

    def mask(self, *axes: int) -> torch.Tensor:
        """bool, on the device of the batch: True where a sample is, False where padding is.

        axes: which axes of `data` vary; by default the last one, or the last two of images. The mask is (batch, size)
        or (batch, height, width); `mask()[:, None]` fits data with channels or bins in front.
        """
        lengths = self.lengths if self.lengths.ndim > 1 else self.lengths[:, None]
        count = lengths.shape[1]
        chosen = [
            axis % self.data.ndim for axis in axes or range(-count, 0) if -self.data.ndim <= axis < self.data.ndim
        ]
        if len(chosen) != count or len(axes) not in (0, count) or 0 in chosen:
            raise ValueError(f"this batch varies along {count} of the axes 1 to {self.data.ndim - 1}, got axes={axes}")
        sizes = [self.data.shape[axis] for axis in chosen]
        if (lengths.amax(dim=0) > torch.tensor(sizes, device=lengths.device)).any():
            raise ValueError(f"lengths are larger than the sizes {sizes} of axes {chosen}; name the axes that vary")
        mask = torch.ones((), dtype=torch.bool, device=lengths.device)
        for axis, size in enumerate(sizes):
            inside = torch.arange(size, device=lengths.device) < lengths[:, axis, None]
            mask = mask & inside.view(len(lengths), *[size if other == axis else 1 for other in range(count)])
        return mask


def pad(arrays: Sequence[np.ndarray], varying_axes: Sequence[int], make: MakeArray = fresh_array) -> Padded:
    """Arrays of one rank and dtype -> one tensor, and the true sizes along `varying_axes`."""
    first = arrays[0]
    if first.ndim == 3 and not first.flags.c_contiguous and first.transpose(1, 2, 0).flags.c_contiguous:
        axes = [(2, 0, 1)[axis] for axis in varying_axes]  # channels last in memory, and so is the batch
        padded = pad([array.transpose(1, 2, 0) for array in arrays], axes, make)
        return Padded(padded.data.permute(0, 3, 1, 2), padded.lengths)
    shapes = np.array([array.shape for array in arrays], np.int64)
    data = make((len(arrays), *shapes.max(axis=0).tolist()), arrays[0].dtype)
    if make is not fresh_array and not (shapes == shapes[0]).all():
        data[:] = 0
    for row, array in zip(data, arrays):
        row[tuple(slice(size) for size in array.shape)] = array
    lengths = shapes[:, list(varying_axes)]
    return Padded(torch.from_numpy(data), torch.from_numpy(lengths[:, 0].copy() if len(varying_axes) == 1 else lengths))


def stack(arrays: Sequence[np.ndarray], make: MakeArray = fresh_array) -> torch.Tensor:
    """Arrays of one shape and dtype -> a tensor (batch, *shape); channels_last stays so."""
    first = arrays[0]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ValueError(f"samples of one batch must have one shape, got {sorted(shapes)[:4]}")
    if first.ndim == 3 and not first.flags.c_contiguous and first.transpose(1, 2, 0).flags.c_contiguous:
        return _stack([array.transpose(1, 2, 0) for array in arrays], make).permute(0, 3, 1, 2)
    return _stack(arrays, make)


def _stack(arrays: Sequence[np.ndarray], make: MakeArray) -> torch.Tensor:
    out = make((len(arrays), *arrays[0].shape), arrays[0].dtype)
    return torch.from_numpy(np.stack(arrays, out=out))


def collate_values(values: Sequence[Any], varying_axes: Sequence[int], make: MakeArray = fresh_array) -> Any:
    """One field of several samples -> its batch: tensors stacked or padded, numbers as a tensor, text as a list.

    make: gives the memory.
    """
    first = values[0]
    if isinstance(first, torch.Tensor):
        if first.device.type != "cpu" or first.requires_grad:
            return torch.stack(list(values))
        if first.dtype == torch.bfloat16 or first.is_sparse:
            return torch.stack(list(values))
        arrays = [value.numpy() for value in values]
        return pad(arrays, varying_axes, make) if varying_axes else stack(arrays, make)
    if isinstance(first, str):
        return list(values)
    if isinstance(first, bool | int | float | np.generic):
        return torch.tensor(list(values), dtype=torch.float64 if isinstance(first, float) else None)
    return torch.utils.data.default_collate(list(values))
