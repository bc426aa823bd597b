"""A source without a listing is asked for its samples one by one."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np

from precompile.errors import RecipeError, SourceError
from precompile.format.index import Column
from precompile.format.text import TextColumn
from precompile.pipeline.input_stat import StatRow, pack_stat, stat_array, stat_bytes, stat_file
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import Listing, RawSample, Scalar, Source
from precompile.pipeline.text_builder import TextBuilder


def list_samples(source: Source, recipe: Recipe) -> Listing:
    """All samples as arrays, in the source's order.

    Raises SourceError when samples contradict each other or lack a file, StorageError when one cannot be read,
    RecipeError for a label that is not among the classes.
    """
    samples = _Samples(source, recipe)
    for index in range(len(source)):
        samples.add(source[index])
    return samples.finish()


class _Samples:
    """Collects the columns of a listing."""

    def __init__(self, source: Source, recipe: Recipe) -> None:
        self._media = source.media
        self._classes = recipe.classes or source.classes
        self._missing_is_planned = recipe.missing == "quarantine"
        self._seen: set[str] = set()
        self._keys, self._paths = TextBuilder(), TextBuilder()
        self._stat: list[int] = []
        self._splits: dict[str, int] = {}
        self._split = array("i")
        self._columns: dict[str, list[Scalar]] = {}

    def add(self, sample: RawSample) -> None:
        media = sample.parts.get(self._media)
        if not isinstance(media, Path | bytes):
            raise SourceError(
                f"{sample.key}: expected a path or bytes as part {self._media!r}, got {type(media).__name__}"
            )
        if sample.key in self._seen:
            raise SourceError(f"two inputs have the key {sample.key!r}; keys must be unique")
        self._add_columns(sample)
        self._seen.add(sample.key)
        self._keys.append(sample.key)
        self._paths.append(str(media) if isinstance(media, Path) else "")
        self._stat += self._stat_of(media)
        self._split.append(self._splits.setdefault(sample.split, len(self._splits)))

    def _stat_of(self, media: Path | bytes) -> StatRow:
        if isinstance(media, bytes):
            return stat_bytes(media)
        return stat_file(media, missing_is_planned=self._missing_is_planned)

    def _add_columns(self, sample: RawSample) -> None:
        position = len(self._keys)
        for name, value in sample.parts.items():
            if name == self._media:
                continue
            if isinstance(value, Path | bytes):
                raise SourceError(f"{sample.key}: part {name!r} must be a number or text, got {type(value).__name__}")
            values = self._columns.setdefault(name, [])
            if len(values) == position:
                values.append(value)
        for name, values in self._columns.items():
            if len(values) != position + 1:
                raise SourceError(f"{sample.key}: every sample must have the part {name!r}")

    def finish(self) -> Listing:
        classes, columns = None, {}
        if "label" in self._columns:
            classes, columns["label"] = self._labels(self._columns.pop("label"))
        columns |= {name: _as_column(name, values) for name, values in self._columns.items()}
        return Listing(
            keys=self._keys.finish(),
            locations=self._paths.finish(),
            root="",
            stat=stat_array(pack_stat(self._stat)),
            splits=tuple(self._splits),
            split=np.array(self._split, np.int32),
            classes=classes,
            columns=columns,
        )

    def _labels(self, labels: list[Scalar]) -> tuple[tuple[str, ...] | None, Column]:
        names = {value for value in labels if isinstance(value, str)}
        classes = tuple(sorted(names)) or None if self._classes is None else self._classes
        unknown = sorted(names - set(classes or ()))
        if unknown:
            raise RecipeError(f"label {unknown[0]!r} is not among the classes {', '.join((classes or ())[:20])}")
        number = {name: position for position, name in enumerate(classes or ())}
        coded = [number[value] if isinstance(value, str) else value for value in labels]
        if not all(isinstance(value, int) for value in coded):
            raise SourceError("labels must be class names or integers")
        return classes, np.array(coded, np.int64)


def _as_column(name: str, values: list[Any]) -> Column:
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return TextColumn.of(values)
    if kinds <= {int, bool}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            raise SourceError(f"column {name!r}: integers must fit 64 bits") from None
    if kinds <= {int, float, bool}:
        return np.array(values, np.float64)
    raise SourceError(
        f"column {name!r}: values must be all numbers or all text, got {sorted(k.__name__ for k in kinds)}"
    )
