"""Every input that was left out, and why: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from precompile.errors import FormatError

QUARANTINE_NAME = "quarantine.jsonl"


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

    @property
    def identity(self) -> tuple[str, int, str]:
        """Equal for an input that has not changed since it failed."""
        return self.key, self.size, self.xxh3

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
        return [Quarantined(**json.loads(line)) for line in path.read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"{path}: damaged quarantine file ({error}); build --rebuild writes a new one") from None
