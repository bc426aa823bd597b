"""Inputs that were in work when a whole build was killed: one of them may have taken all memory.

They are compiled last and alone in the next build. One that ends that build too is guilty, and is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from precompile.errors import FormatError
from precompile.format.files import read_whole
from precompile.format.index import open_array, open_text
from precompile.pipeline.compile_input import Failure
from precompile.pipeline.executors.heartbeat import read_left
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.plan import STAT_FIELDS
from precompile.pipeline.storage import write_atomically

_NAME = "suspects.json"
_MAX_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Suspect:
    """One input, by what identifies it: a file that was rewritten is not the same suspect."""

    key: str
    stat: tuple[int, ...]
    kills: int
    """Builds that ended while it was in work."""
    is_alone: bool = False
    """It is being compiled now, or was when its build ended, with nothing else in work."""
    is_guilty: bool = False

    def failure(self) -> Failure:
        message = (
            f"the whole build was killed {self.kills} times while this input was in work, the last time with nothing "
            "else in work; most likely it needs more memory than there is"
        )
        return Failure("BuildKilled", message, self.kills)


class Suspects:
    """The suspects of one output directory, kept in `build/` until the next commit."""

    def __init__(self, directory: Path, suspects: Iterable[Suspect] = ()) -> None:
        self._path = directory / _NAME
        self._by_key = {suspect.key: suspect for suspect in suspects}

    @classmethod
    def open(cls, dirs: BuildDirs) -> Suspects:
        """Those on record, and those in work when the last build was killed; call before `build/plan` is replaced."""
        suspects = cls(dirs.work, _read(dirs.work / _NAME))
        for key, stat in _left_in_work(dirs):
            suspects._accuse(key, stat)
        suspects._save()
        return suspects

    def _accuse(self, key: str, stat: tuple[int, ...]) -> None:
        before = self._by_key.get(key)
        if before is None or before.stat != stat:
            self._by_key[key] = Suspect(key, stat, 1)
        else:
            self._by_key[key] = replace(before, kills=before.kills + 1, is_alone=False, is_guilty=before.is_alone)

    def find(self, key: str, stat: tuple[int, ...]) -> Suspect | None:
        suspect = self._by_key.get(key)
        return suspect if suspect is not None and suspect.stat == stat else None

    def __len__(self) -> int:
        return len(self._by_key)

    def keys(self) -> list[str]:
        return list(self._by_key)

    def begin_alone(self, keys: Iterable[str]) -> None:
        """Durable before the work begins: whatever ends the machine, the next build knows that they were alone."""
        for key in keys:
            self._by_key[key] = replace(self._by_key[key], is_alone=True)
        self._save()

    def end_alone(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._by_key[key] = replace(self._by_key[key], is_alone=False)
        self._save()

    def acquit(self, keys: Iterable[str]) -> None:
        for key in keys:
            if not self._by_key[key].is_guilty:
                del self._by_key[key]
        self._save()

    def _save(self) -> None:
        if self._by_key:
            text = json.dumps([asdict(suspect) for suspect in self._by_key.values()])
            write_atomically(self._path, text.encode())
        else:
            self._path.unlink(missing_ok=True)


def _read(path: Path) -> list[Suspect]:
    try:
        rows = json.loads(read_whole(path, _MAX_BYTES))
        return [Suspect(**{**row, "stat": tuple(row["stat"])}) for row in rows]
    except (OSError, ValueError, TypeError, KeyError, FormatError):
        return []


def _left_in_work(dirs: BuildDirs) -> list[tuple[str, tuple[int, ...]]]:
    """Key and stat of the inputs on which workers were when their build was killed, by that build's plan."""
    pulses = read_left(dirs.workers) if dirs.workers.is_dir() else []
    if not pulses:
        return []
    try:
        stat = open_array(dirs.plan / "stat.npy", "int64", (None, len(STAT_FIELDS)))
        keys = open_text(dirs.plan, "key", len(stat))
        samples = sorted({pulse.sample for pulse in pulses if 0 <= pulse.sample < len(stat)})
        return [(keys[sample], tuple(stat[sample].tolist())) for sample in samples]
    except (OSError, ValueError, FormatError):
        return []
