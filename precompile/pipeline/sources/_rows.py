"""Reading .csv, .tsv and .jsonl files into columns of text."""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precompile.errors import SourceError, StorageError
from precompile.format.text import TextColumn
from precompile.pipeline.text_builder import TextBuilder

csv.field_size_limit(2**31 - 1)
_DELIMITERS = ",;|\t"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """n rows as columns."""

    path: Path
    columns: dict[str, TextColumn]
    """By name. A missing cell is empty; JSON numbers are as Python writes them, booleans 0 and 1."""
    texts: frozenset[str]
    """Columns in which JSON has a string: they are text whatever the strings look like."""
    lines: np.ndarray
    """int64 (n,), the line of the file on which each row begins, from 1."""


def read_table(path: Path) -> Table:
    """All rows of a table, told by its suffix.

    UTF-8 with or without a byte order mark, any line ends; blank lines are skipped. Raises SourceError naming the
    line of what is not a row, StorageError when the file cannot be read.
    """
    try:
        if path.suffix.lower() == ".jsonl":
            return _read_jsonl(path)
        if path.suffix.lower() == ".csv":
            return _read_csv(path, _delimiter(path), csv.QUOTE_MINIMAL)
        try:
            return _read_csv(path, "\t", csv.QUOTE_MINIMAL)
        except SourceError:  # many .tsv files (Common Voice) have sentences with lone quotes: there, quotes are text
            return _read_csv(path, "\t", csv.QUOTE_NONE)
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path}: must be UTF-8, got {error.object[error.start]:#x}; convert it, say by iconv"
        ) from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error


def _delimiter(path: Path) -> str:
    """A comma when the header has one, else what it has most of."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline()
    return "," if "," in header else max(_DELIMITERS, key=header.count)


def _read_csv(path: Path, delimiter: str, quoting: Any) -> Table:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = _numbered_rows(path, csv.reader(
            file, delimiter=delimiter, quoting=quoting, strict=True, skipinitialspace=delimiter != "\t"))  # fmt: skip
        names = [name.strip() for name in next(rows, (0, []))[1]]
        if not names:
            raise SourceError(f"{path}: a table needs a header row, got an empty file")
        if len(set(names)) < len(names):
            raise SourceError(f"{path}: column names must be unique, got {', '.join(map(repr, names))}")
        builders, lines = [TextBuilder() for _ in names], array("q")
        for line, row in rows:
            if len(row) != len(names):
                raise SourceError(
                    f"{path}, line {line}: expected {len(names)} cells ({', '.join(names)}), got {len(row)}"
                )
            for builder, cell in zip(builders, row):
                builder.append(cell)
            lines.append(line)
    columns = {name: builder.finish() for name, builder in zip(names, builders)}
    return Table(path, columns, frozenset(), np.array(lines, np.int64))


def _numbered_rows(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with the line on which it begins."""
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise SourceError(f"{path}, line {line}: {error}") from None
        if row:
            yield line, row


def _read_jsonl(path: Path) -> Table:
    builders: dict[str, TextBuilder] = {}
    texts: set[str] = set()
    lines = array("q")
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            for name, value in _json_object(path, line, text).items():
                builder = builders.setdefault(name, TextBuilder(len(lines)))
                if isinstance(value, str):
                    texts.add(name)
                _append(builder, value, f"{path}, line {line}, {name}")
            lines.append(line)
            for builder in builders.values():
                if len(builder) < len(lines):
                    builder.append("")
    columns = {name: builder.finish() for name, builder in builders.items()}
    return Table(path, columns, frozenset(texts), np.array(lines, np.int64))


def _json_object(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}, line {line}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise SourceError(f"{path}, line {line}: expected one JSON object a line, got {type(value).__name__}")
    return value


def _append(builder: TextBuilder, value: Any, where: str) -> None:
    if isinstance(value, dict | list):
        raise SourceError(f"{where}: expected text, a number, true, false or null, got {json.dumps(value)[:60]}")
    if value is None or value != value:  # Python writes a missing float as NaN, which is not JSON
        value = ""
    try:
        builder.append(str(int(value) if isinstance(value, bool) else value))
    except UnicodeEncodeError:
        raise SourceError(f"{where}: not valid Unicode: {value!r}") from None
