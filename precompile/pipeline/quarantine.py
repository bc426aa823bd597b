"""Every input that was left out, and why: one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from precompile.errors import FormatError
from precompile.format.files import open_regular

QUARANTINE_NAME = "quarantine.jsonl"
_MAX_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One input that could not be compiled."""

    key: str
    path: str
    split: str
    stage: str
    """`read`, `decode`, `transform` or `store`."""
    error: str
    """The class of the error."""
    message: str
    size: int
    xxh3: str
    """XXH3-64 of the file's bytes, 16 hex digits; empty when they were not read."""
    attempts: int
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0

    @property
    def identity(self) -> tuple[str, int, str]:
        """Equal for an input that has not changed since it failed."""
        return self.key, self.size, self.xxh3 or str(self.mtime_ns)

    @property
    def stat(self) -> tuple[int, int, int, int]:
        """As in a plan: size, times and inode of the file."""
        return self.size, self.mtime_ns, self.ctime_ns, self.inode

    def __str__(self) -> str:
        return f"{printable(self.key)}: {self.stage}: {self.message}"


def printable(text: str) -> str:
    """A key or path for one line of a terminal or log, whatever bytes the file name holds."""
    safe = text.encode("utf-8", "backslashreplace").decode()
    return safe if safe.isprintable() else safe.encode("unicode_escape").decode()


def write_quarantine(path: Path, rows: Iterable[Quarantined]) -> None:
    lines = [json.dumps(asdict(row), ensure_ascii=True) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="ascii")


def read_quarantine(path: Path) -> list[Quarantined]:
    """The rows of a generation's quarantine file; none when there is no such file. Raises FormatError if damaged."""
    if not path.exists():
        return []
    try:
        with os.fdopen(open_regular(path), encoding="ascii") as file:
            return [Quarantined(**json.loads(line)) for line in _lines(file)]
    except FormatError:
        raise
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"{path}: damaged quarantine file ({error}); build --rebuild writes a new one") from None


def _lines(file: IO[str]) -> Iterator[str]:
    while line := file.readline(_MAX_LINE):
        if len(line) == _MAX_LINE:
            raise ValueError(f"a line of {_MAX_LINE} characters or more")
        yield line
