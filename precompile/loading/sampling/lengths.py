"""How long samples are, without reading any."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from precompile.format.schema import FieldSpec
from precompile.loading.dataset import CompiledDataset
from precompile.loading.sampling.subset import index_rows, unwrap

_CHUNK = 1 << 20


def sample_lengths(dataset: Any, field: str | None = None) -> np.ndarray:
    """int64 (n,) of a CompiledDataset or a Subset of one: the size of `field` along the axis that varies.

    Where several axes vary, such as those of an image, their product. field: None is the first of the dataset's fields
    that varies. Raises TypeError for another dataset, ValueError when the field does not vary.
    """
    compiled, positions = unwrap(dataset)
    spec = _varying_field(compiled, field)
    column = compiled.stored.index.shape_column(spec.name)
    assert column is not None
    rows = index_rows(compiled, positions)
    if len(spec.varying_axes) == 1:
        lengths: np.ndarray = column[rows, spec.varying_axes[0]]
        return lengths
    product: np.ndarray = np.prod(column[rows][:, list(spec.varying_axes)], axis=1)
    return product


def given_lengths(lengths: Any, count: int) -> np.ndarray:
    """Lengths that a caller gives, as int64 (count,). Raises ValueError when they are something else."""
    array = np.asarray(lengths)
    if array.shape != (count,) or (count and array.dtype.kind not in "iu"):
        raise ValueError(f"lengths must be {count} whole numbers, got {array.dtype} of shape {array.shape}")
    if count and int(array.min()) < 0:
        raise ValueError(f"lengths must be at least 0, got {array.min()}")
    return array.astype(np.int64)


def checksum(lengths: np.ndarray) -> int:
    """Differs when the lengths do."""
    value = 0
    for start in range(0, len(lengths), _CHUNK):
        value = zlib.crc32(np.ascontiguousarray(lengths[start : start + _CHUNK], "<i8").data, value)
    return value


def _varying_field(dataset: CompiledDataset, field: str | None) -> FieldSpec:
    varying = [name for name in dataset.field_names if not dataset.schema[name].is_fixed]
    choices = (
        f"choose from {', '.join(varying)}" if varying else "no field does; give batch_size to Loader, or lengths="
    )
    if field is None and not varying:
        raise ValueError(f"{dataset.root}: needs a field whose size varies, and {choices}")
    if field is not None and field not in dataset.schema:
        raise ValueError(f"{dataset.root}: no field {field!r}; choose from {', '.join(dataset.schema.names)}")
    spec = dataset.schema[varying[0] if field is None else field]
    if spec.is_fixed:
        raise ValueError(f"{dataset.root}: the size of field {spec.name} does not vary: {choices}")
    return spec
