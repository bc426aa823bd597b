"""The tensors in a batch, whatever its form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def map_leaves(tree: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """A batch with `function` applied to what is of that kind, in dicts, tuples, NamedTuples and lists of any depth."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, dict):
        return {name: map_leaves(value, kind, function) for name, value in tree.items()}
    if isinstance(tree, tuple):
        values = [map_leaves(value, kind, function) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    if isinstance(tree, list):
        return [map_leaves(value, kind, function) for value in tree]
    return tree
