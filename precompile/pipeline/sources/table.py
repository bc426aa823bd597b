"""A .csv, .tsv or .jsonl file with one row a sample: a path, and perhaps a label, a split and other columns."""

from __future__ import annotations

import os
import posixpath
import string
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from precompile.errors import RecipeError, SourceError
from precompile.format.index import Column
from precompile.format.text import TextColumn
from precompile.pipeline.input_stat import MISSING, StatRow, pack_stat, stat_array, stat_file
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import Listing
from precompile.pipeline.sources._cells import factorize, field_name, integers, typed
from precompile.pipeline.sources._listing import FolderSource
from precompile.pipeline.sources._media import TABLE_SUFFIXES, media_of_suffix, suffix_of
from precompile.pipeline.sources._rows import Table, read_table
from precompile.pipeline.sources._walk import describe
from precompile.pipeline.text_builder import TextBuilder

PATH_COLUMNS = (
    "path", "file", "file_name", "filename", "filepath", "image", "img", "image_path", "img_path",
    "audio", "audio_path", "slice_file_name",
)  # fmt: skip
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "target", "category", "y")
SPLIT_COLUMNS = ("split",)
NO_SPLIT = "all"


def open_source(root: Path, recipe: Recipe) -> FolderSource:
    """Samples in the order of the rows, with `image` or `audio` (a Path), perhaps `label`, and the other columns.

    `root` is the table, or, with the key `table`, the folder that holds it. Paths and keys are relative to the
    table's folder, or to that one; the key of a file outside of it is its absolute path. Labels that are
    all integers stay integers; others are class names. Raises SourceError naming the line of a bad row, and
    RecipeError when a column or the media is not found.
    """
    root = Path(os.path.abspath(root))
    path, folder = (root, root.parent) if recipe.table is None else (root / recipe.table, root)
    if path.suffix.lower() not in TABLE_SUFFIXES or not path.is_file():
        raise SourceError(f"{path}: a table must be a file of {', '.join(TABLE_SUFFIXES)}")
    table = read_table(path)
    path_column = None if recipe.path_format else _pick(table, recipe.path_column, PATH_COLUMNS)
    if path_column is None and not recipe.path_format:
        raise RecipeError(f"{path}: no column with paths among {_names(table)}; --set path_column= names it")
    label_column = _pick(table, recipe.label_column, LABEL_COLUMNS)
    split_column = _pick(table, recipe.split_column, SPLIT_COLUMNS)
    if not len(table.lines):
        raise SourceError(f"{path}: no rows below the header ({_names(table)})")
    cells = _formatted(table, recipe.path_format) if path_column is None else table.columns[path_column]
    keys = _keys(table, folder, cells, recipe)
    _refuse_duplicates(table, keys)
    media = _media(table, keys, recipe)
    stat = stat_array(pack_stat([value for key in keys for value in _stat(folder, key)]))
    if recipe.missing == "error":
        _refuse_missing(table, folder, keys, stat)
    label, classes = (None, recipe.classes) if label_column is None else _labels(table, label_column, recipe.classes)
    splits, split = _splits(table, split_column)
    labels: dict[str, Column] = {} if label is None else {"label": label}
    columns = labels | _columns(table, {path_column, label_column, split_column})
    listing = Listing(keys=keys, locations=keys, root=str(folder), stat=stat, splits=splits, split=split,
                      classes=classes, columns=columns)  # fmt: skip
    return FolderSource(media, listing, {})


def _names(table: Table) -> str:
    return ", ".join(map(repr, table.columns)) or "none"


def _pick(table: Table, wanted: str | None, usual: tuple[str, ...]) -> str | None:
    """The column called `wanted`, or the first of the usual names that there is; exact case wins."""
    by_name = {name.lower(): name for name in reversed(table.columns)} | {name: name for name in table.columns}
    if wanted is None:
        return next((by_name[name] for name in usual if name in by_name), None)
    if wanted not in by_name and wanted.lower() not in by_name:
        raise RecipeError(f"{table.path}: no column {wanted!r}; the columns are {_names(table)}")
    return by_name.get(wanted) or by_name[wanted.lower()]


def _formatted(table: Table, pattern: str | None) -> Iterator[str]:
    """The pattern with each row's cells filled in for {column}."""
    assert pattern is not None
    try:
        pieces = [(text, name) for text, name, _, _ in string.Formatter().parse(pattern)]
    except ValueError as error:
        raise RecipeError(f"path_format: {error}, got path_format={pattern!r}") from None
    for _, name in pieces:
        if name is not None and name not in table.columns:
            raise RecipeError(f"{table.path}: path_format names the column {name!r}; the columns are {_names(table)}")
    texts = [text for text, _ in pieces]
    for row in zip(*(table.columns[name] if name else [""] * len(table.lines) for _, name in pieces)):
        yield "".join(text + cell for text, cell in zip(texts, row))


def _keys(table: Table, folder: Path, cells: Iterable[str], recipe: Recipe) -> TextColumn:
    top = f"{str(folder).rstrip('/')}/"
    base = posixpath.join(top, recipe.path_prefix)
    keys = TextBuilder()
    for cell, line in zip(cells, table.lines):
        if not cell or "\0" in cell:
            raise SourceError(f"{table.path}, line {line}: expected a path, got {cell!r}")
        path = "/" + posixpath.normpath(posixpath.join(base, cell + recipe.path_suffix)).lstrip("/")
        keys.append(path.removeprefix(top))
    return keys.finish()


def _refuse_duplicates(table: Table, keys: TextColumn) -> None:
    hashes = np.fromiter(map(hash, keys), np.int64, len(keys))
    order = np.argsort(hashes, kind="stable")
    suspects = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    pairs = [(b, a) for a, b in zip(order[suspects], order[suspects + 1]) if keys[int(a)] == keys[int(b)]]
    if pairs:
        second, first = min(pairs)
        raise SourceError(f"{table.path}: lines {table.lines[first]} and {table.lines[second]} both name "
                          f"{keys[int(first)]!r}; each file may have one row")  # fmt: skip


def _stat(folder: Path, key: str) -> StatRow:
    return stat_file(os.path.join(folder, key), missing_is_planned=True)


def _refuse_missing(table: Table, folder: Path, keys: TextColumn, stat: np.ndarray) -> None:
    missing = np.flatnonzero(stat[:, 0] == MISSING).tolist()
    if missing:
        first = ", ".join(f"line {table.lines[row]} {os.path.join(folder, keys[row])!r}" for row in missing[:3])
        raise SourceError(
            f"{table.path}: {len(missing)} of {len(keys)} rows name no file: {first}; mend the paths by "
            f"--set path_prefix= or --set path_suffix=, or --set missing=quarantine goes on without them"
        )


def _media(table: Table, keys: TextColumn, recipe: Recipe) -> str:
    if recipe.media != "auto":
        return recipe.media
    suffixes = Counter(map(suffix_of, keys))
    first, *others = {media_of_suffix(suffix) for suffix in suffixes}
    if first is None or others:
        raise RecipeError(f"{table.path}: the files must be all images or all audio, got {describe(suffixes)}; "
                          f"--set media=image or --set media=audio says what they are")  # fmt: skip
    return first


def _labels(table: Table, column: str, wanted: tuple[str, ...] | None) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """int64 (n,), -1 for an empty cell, and the class names that they index if these are known."""
    cells = table.columns[column]
    numbers = None if column in table.texts else integers(cell or "-1" for cell in cells)
    if numbers is not None and (wanted is None or integers(wanted) is None):
        if wanted is not None:
            _refuse_first(
                table, column, (numbers < -1) | (numbers >= len(wanted)), f"a label from 0 to {len(wanted) - 1}"
            )
        return numbers, wanted
    names, codes = factorize(cells)
    classes = wanted or tuple(name for name in names if name)
    index = {"": -1} | {name: number for number, name in enumerate(classes)}
    label = np.array([index.get(name, -2) for name in names], np.int64)[codes]
    _refuse_first(table, column, label == -2, f"one of the classes {', '.join(classes)}")
    return label, classes


def _splits(table: Table, column: str | None) -> tuple[tuple[str, ...], np.ndarray]:
    if column is None:
        return (NO_SPLIT,), np.zeros(len(table.lines), np.int32)
    names, codes = factorize(table.columns[column])
    if "" in names:
        _refuse_first(table, column, codes == names.index(""), "the name of a split")
    return names, codes.astype(np.int32)


def _refuse_first(table: Table, column: str, bad: np.ndarray, expected: str) -> None:
    """Raise SourceError for the first row that is `bad` (bool (n,)), if any."""
    rows = np.flatnonzero(bad)
    if len(rows):
        cell = table.columns[column][int(rows[0])]
        raise SourceError(
            f"{table.path}, line {table.lines[rows[0]]}: expected {expected} in column {column!r}, got {cell!r}"
        )


def _columns(table: Table, used: set[str | None]) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for name, cells in table.columns.items():
        if name not in used:
            columns[field_name(name, columns)] = cells if name in table.texts else typed(cells)
    return columns
