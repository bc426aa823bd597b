"""Samples -> a batch: stack equal shapes, pad varying ones. Copies by numpy only, which never starts a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from precompile.loading.buffers import fresh_array


class Padded(NamedTuple):
    """A batch of samples of varying shape."""

    data: torch.Tensor
    """(batch, *largest shape), zeros behind each sample's end."""
    lengths: torch.Tensor
    """int64: each sample's true size along the varying axis, (batch,), or along several, (batch, axes)."""


def pad(arrays: Sequence[np.ndarray], varying_axes: Sequence[int]) -> Padded:
    """Arrays of one rank and dtype -> one tensor of fresh memory, and the true sizes along `varying_axes`."""
    shapes = np.array([array.shape for array in arrays], np.int64)
    data = fresh_array((len(arrays), *shapes.max(axis=0).tolist()), arrays[0].dtype)
    for row, array in zip(data, arrays):
        row[tuple(slice(size) for size in array.shape)] = array
    lengths = shapes[:, list(varying_axes)]
    return Padded(torch.from_numpy(data), torch.from_numpy(lengths[:, 0].copy() if len(varying_axes) == 1 else lengths))


def stack(arrays: Sequence[np.ndarray]) -> torch.Tensor:
    """Arrays of one shape and dtype -> a tensor (batch, *shape) of fresh memory; channels_last stays so."""
    first = arrays[0]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ValueError(f"samples of one batch must have one shape, got {sorted(shapes)[:4]}")
    if first.ndim == 3 and not first.flags.c_contiguous and first.transpose(1, 2, 0).flags.c_contiguous:
        return _stack([array.transpose(1, 2, 0) for array in arrays]).permute(0, 3, 1, 2)
    return _stack(arrays)


def _stack(arrays: Sequence[np.ndarray]) -> torch.Tensor:
    out = fresh_array((len(arrays), *arrays[0].shape), arrays[0].dtype)
    return torch.from_numpy(np.stack(arrays, out=out))


def collate_values(values: Sequence[Any], varying_axes: Sequence[int]) -> Any:
    """One field of several samples -> its batch: tensors stacked or padded, numbers as a tensor, text as a list."""
    first = values[0]
    if isinstance(first, torch.Tensor):
        if first.device.type != "cpu" or first.requires_grad:
            return torch.stack(list(values))
        if first.dtype == torch.bfloat16 or first.is_sparse:
            return torch.stack(list(values))
        arrays = [value.numpy() for value in values]
        return pad(arrays, varying_axes) if varying_axes else stack(arrays)
    if isinstance(first, str):
        return list(values)
    if isinstance(first, bool | int | float | np.generic):
        return torch.tensor(list(values), dtype=torch.float64 if isinstance(first, float) else None)
    return torch.utils.data.default_collate(list(values))
