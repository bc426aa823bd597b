"""What a sample is: which fields, in which form, and what they go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from precompile.format.schema import Schema

Fields: TypeAlias = str | Sequence[str] | None
"""None: a dict of all fields. A name: that value alone. Several names: a tuple in that order."""
Transform: TypeAlias = Callable[[Any], Any]
Transforms: TypeAlias = Transform | Mapping[str, Transform] | None
"""For the first array field, or by field."""


def field_names(fields: Fields, schema: Schema) -> tuple[str, ...]:
    """The fields of a sample, in order."""
    if fields is None:
        return schema.names
    return (fields,) if isinstance(fields, str) else tuple(fields)


def check_form(fields: Fields, transform: Transforms, schema: Schema, root: Path) -> None:
    """Raises ValueError for what the schema does not have."""
    names = field_names(fields, schema)
    if len(set(names)) < len(names):
        raise ValueError(f"fields must name each field once, got {', '.join(names)}")
    for name in names:
        if name not in schema:
            raise ValueError(f"{root}: no field {name!r}; choose from {', '.join(schema.names)}")
    if callable(transform) and all(schema[name].is_column for name in names):
        raise ValueError(f"transform needs an array field among fields, got {', '.join(names)}")
    if isinstance(transform, Mapping) and not set(transform) <= set(names):
        raise ValueError(f"transform must name fields among {', '.join(names)}, got {', '.join(transform)}")


def transforms_by_field(transform: Transforms, fields: Fields, schema: Schema) -> Mapping[str, Transform]:
    if transform is None or isinstance(transform, Mapping):
        return transform or {}
    first = next(name for name in field_names(fields, schema) if not schema[name].is_column)
    return {first: transform}


def arrange(fields: Fields, values: Mapping[str, Any]) -> Any:
    """Values by field name -> the form that `fields` asks for."""
    if fields is None:
        return dict(values)
    if isinstance(fields, str):
        return values[fields]
    return tuple(values[name] for name in fields)


def parts(fields: Fields, sample: Any) -> Mapping[str, Any]:
    """A sample in the form of `fields` -> its values by field name."""
    if fields is None:
        return sample  # type: ignore[no-any-return]
    return {fields: sample} if isinstance(fields, str) else dict(zip(fields, sample))
