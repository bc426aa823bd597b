"""What a user says about the cache."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

_IF_FULL = ("error", "disk")


@dataclass(frozen=True, slots=True)
class Cache:
    """Where a dataset is staged, and what happens when it does not fit.

    Args:
        directory: a folder of precompile's own, usually on a RAM disk; None is /dev/shm/precompile-<uid>.
        if_full: `error` raises NoRoomError, with need and have; `disk` logs a warning, and the dataset reads its own
            files.
        reserve_bytes: memory that stays free for training; None is an eighth of what the container has. Never less
            than 64 MiB, which whoever stages needs.
        stall_seconds: another process that stages the same dataset and makes no progress for so long is a BusyError
            that names it.

    Raises ValueError for a value out of range.
    """

    directory: str | os.PathLike[str] | None = None
    if_full: str = "error"
    reserve_bytes: int | None = None
    stall_seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.directory is not None:
            given = os.fsdecode(self.directory)
            if not given or "\0" in given:
                raise ValueError(f"directory must be a path, got {given!r}")
            object.__setattr__(self, "directory", Path(os.path.abspath(given)))
        if self.if_full not in _IF_FULL:
            raise ValueError(f"if_full must be one of {', '.join(_IF_FULL)}, got {self.if_full!r}")
        reserve = self.reserve_bytes
        if reserve is not None and (isinstance(reserve, bool) or not isinstance(reserve, int) or reserve < 0):
            raise ValueError(f"reserve_bytes must be None or an integer of at least 0, got {reserve!r}")
        if not (self.stall_seconds > 0 and math.isfinite(self.stall_seconds)):
            raise ValueError(f"stall_seconds must be a number above 0, got {self.stall_seconds}")

    @property
    def path(self) -> Path:
        return default_directory() if self.directory is None else Path(self.directory)


CacheOption: TypeAlias = bool | str | os.PathLike[str] | Cache | None


def default_directory() -> Path:
    """One for each user, so that two users of a machine never meet."""
    return Path(f"/dev/shm/precompile-{os.geteuid() if hasattr(os, 'geteuid') else 'user'}")


def as_cache(value: CacheOption) -> Cache | None:
    """True: a Cache with all defaults; a path: its directory; None or False: no cache."""
    if value is None or value is False:
        return None
    if value is True:
        return Cache()
    if isinstance(value, Cache):
        return value
    if isinstance(value, str | os.PathLike):
        return Cache(directory=value)
    raise TypeError(f"cache must be True, a directory or a Cache, got {value!r}")
