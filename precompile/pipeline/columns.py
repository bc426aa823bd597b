"""Comparing columns of the same samples, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from precompile.format.index import Column
from precompile.format.text import TextColumn


def take(column: Column | None, rows: np.ndarray) -> Column | None:
    """The values at some rows."""
    if column is None or isinstance(column, np.ndarray):
        return None if column is None else column[rows]
    return column.take(rows)


def differs(left: Column | None, right: Column | None, count: int) -> np.ndarray:
    """bool (count,): where values differ; everywhere when there is one column only, or one is text. NaN equals NaN."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        unequal: np.ndarray = (left != right) & ~((left != left) & (right != right))
        return unequal
    if isinstance(left, TextColumn) and isinstance(right, TextColumn):
        return np.fromiter((a != b for a, b in zip(left, right)), bool, count)
    return np.full(count, left is not right)


def ids_of_labels(
    label: Column | None, rows: np.ndarray, classes: Sequence[str] | None, ids: dict[str, int]
) -> np.ndarray:
    """int64 (n,): `ids_of_names` of the classes of some rows; all are called -1 where there are no labels."""
    numbers = label[rows] if isinstance(label, np.ndarray) else np.full(len(rows), -1)
    return ids_of_names(numbers, classes or (), ids)


def ids_of_names(numbers: np.ndarray, names: Sequence[str], ids: dict[str, int]) -> np.ndarray:
    """int64 (n,): equal exactly where the names are, whatever numbers they have; new names are added to `ids`.

    A number that has no name is called by its digits.
    """
    values, where = np.unique(numbers, return_inverse=True)
    called = [names[int(value)] if 0 <= value < len(names) else str(value) for value in values.tolist()]
    return np.array([ids.setdefault(name, len(ids)) for name in called], np.int64)[where]
