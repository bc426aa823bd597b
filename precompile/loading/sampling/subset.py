"""The compiled dataset below torch Subsets, and which of its rows are meant."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.utils.data

from precompile.loading.dataset import CompiledDataset


def unwrap(dataset: Any) -> tuple[CompiledDataset, np.ndarray | None]:
    """The dataset below any Subsets, and int64 (n,) the positions in it, from 0 on; None are all.

    Raises TypeError when it is none, IndexError when a Subset has positions outside of it.
    """
    positions: np.ndarray | None = None
    while type(dataset) is torch.utils.data.Subset:
        indices = checked_indices(dataset.indices)
        positions = indices if positions is None else indices[positions]
        dataset = dataset.dataset
    if not isinstance(dataset, CompiledDataset):
        hint = ""
        if isinstance(dataset, torch.utils.data.Subset):
            hint = "; a subclass may change samples, so use torch's DataLoader, or transform= of the dataset"
        raise TypeError(f"dataset must be a CompiledDataset or a Subset of one, got {type(dataset).__name__}{hint}")
    if positions is None or not positions.size:
        return dataset, positions
    count = len(dataset)
    low, high = int(positions.min()), int(positions.max())
    if not -count <= low <= high < count:
        raise IndexError(f"the Subset must have positions below {count}, got {low} to {high}")
    return dataset, np.where(positions < 0, positions + count, positions) if low < 0 else positions


def checked_indices(indices: Any) -> np.ndarray:
    """int64 (n,) from the indices of a Subset. Raises TypeError for anything but whole numbers in one row."""
    found = np.asarray(indices if len(indices) else np.empty(0, np.int64))
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise TypeError(f"the indices of a Subset must be integers in one dimension, got {found.dtype} {found.shape}")
    if found.dtype.kind == "u" and found.size and int(found.max()) > np.iinfo(np.int64).max:
        raise IndexError(f"the Subset must have positions of a dataset, got {found.max()}")
    return found.astype(np.int64)


def index_rows(dataset: CompiledDataset, positions: np.ndarray | None) -> slice | np.ndarray:
    """What selects these samples in a column of the index."""
    count = len(dataset)
    first = dataset.sample_number(0) if count else 0
    return slice(first, first + count) if positions is None else positions + first
