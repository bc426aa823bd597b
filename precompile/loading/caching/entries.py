"""What an entry of the cache is a copy of; which entries are there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from precompile.errors import DatasetNotFoundError, FormatError, PrecompileError, StorageError
from precompile.format.files import UnreadableError, read_whole
from precompile.format.generation import read_current, read_generation
from precompile.format.lease import is_in_use
from precompile.format.manifest import Manifest
from precompile.format.schema import checked_text
from precompile.loading.caching.directory import CacheDirectory, entry_name

FACTS_NAME = "entry.json"
USED_NAME = "used"
_MAX_BYTES = 1 << 20
_CLOCK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A part of one generation of a dataset. Raises ValueError for a field or split that it does not have."""

    root: Path
    """As given, for messages."""
    real_root: str
    """Where that led when the manifest was read: what is a link may lead elsewhere a moment later."""
    manifest: Manifest
    fields: tuple[str, ...] | None
    """Array fields in the schema's order; None is all. Columns are always included."""
    split: str | None
    """None is all of them."""
    digest: str
    """SHA-256 of the manifest."""

    @classmethod
    def find(cls, root: Path, generation: int | None, fields: str | Sequence[str] | None, split: str | None) -> Wanted:
        """Raises DatasetNotFoundError or FormatError, too."""
        real_root = Path(os.path.realpath(root))
        manifest = read_generation(real_root if os.path.exists(real_root) else root, generation)
        schema = manifest.schema
        if isinstance(fields, str):
            fields = (fields,)
        if split is not None:
            manifest.split(split)
        for name in fields or ():
            if name not in schema:
                raise ValueError(f"{root}: no field {name!r}; choose from {', '.join(schema.names)}")
        arrays = tuple(spec.name for spec in schema.arrays if fields is None or spec.name in fields)
        if len(arrays) == len(schema.arrays):
            fields = None
        if split is not None and manifest.split(split).count == manifest.count:
            split = None
        return cls(root, str(real_root), manifest, None if fields is None else arrays, split, manifest_digest(manifest))

    def __str__(self) -> str:
        parts = [f"{self.root}, generation {self.manifest.generation}"]
        parts += [] if self.split is None else [f"split {self.split}"]
        parts += [] if self.fields is None else [f"fields {', '.join(self.fields)}"]
        return ", ".join(parts)

    @property
    def is_everything(self) -> bool:
        return self.fields is None and self.split is None

    @property
    def real_path(self) -> Path:
        return Path(self.real_root)

    def is_replaced(self, generation: int | None) -> bool:
        """Whether `find` would find something else now, or nothing."""
        try:
            found = Wanted.find(self.root, generation, self.fields, self.split)
        except (DatasetNotFoundError, ValueError):
            return True
        except FormatError:
            return False
        return (found.real_root, found.digest) != (self.real_root, self.digest)

    @property
    def name(self) -> str:
        parts = (self.real_root, self.digest, json.dumps([self.fields, self.split]))
        digest = hashlib.sha256(b"\0".join(os.fsencode(part) for part in parts)).hexdigest()
        return entry_name(self.real_path.name, digest)


@dataclass(frozen=True, slots=True)
class Facts:
    """entry.json: what an entry is a copy of and who made it. Raises FormatError for values that cannot be."""

    root: str
    generation: int
    manifest: str
    """SHA-256 of the generation's manifest."""
    fingerprint: str
    fields: tuple[str, ...] | None
    split: str | None
    num_bytes: int
    pid: int
    host: str
    uid: int
    staged_at: float
    """Seconds since 1970."""

    def __post_init__(self) -> None:
        texts = [self.root, self.manifest, self.fingerprint, self.host, *(self.fields or ()), self.split or ""]
        numbers = (self.generation, self.num_bytes, self.pid, self.uid)
        if not all(isinstance(text, str) and "\0" not in text for text in texts):
            raise FormatError("texts must be strings without zeros")
        if not all(type(number) is int and 0 <= number < 2**62 for number in numbers):
            raise FormatError(f"numbers must be integers from 0 to 2^62, got {numbers}")
        if type(self.staged_at) is not float or not math.isfinite(self.staged_at):
            raise FormatError(f"staged_at must be a number of seconds, got {self.staged_at!r}")
        for text in texts:
            checked_text(text)

    def covers(self, wanted: Wanted) -> bool:
        """Whether all that is wanted is in the entry."""
        fields_fit = self.fields is None or (wanted.fields is not None and set(wanted.fields) <= set(self.fields))
        split_fits = self.split is None or self.split == wanted.split
        return self.is_of(wanted) and fields_fit and split_fits

    def is_of(self, wanted: Wanted) -> bool:
        return self.root == wanted.real_root and self.manifest == wanted.digest

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class Entry:
    """A complete entry; `facts` is None when its entry.json is damaged, or cannot be read by this process."""

    name: str
    path: Path
    facts: Facts | None
    unreadable: UnreadableError | None = None

    @property
    def generation_dir(self) -> Path:
        """The folder whose manifest carries the lease; there is one, if the entry is whole. Raises StorageError."""
        names: list[str] = []
        try:
            names = [name for name in os.listdir(self.path / "generations") if name[:1].isdecimal()]
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            pass  # damaged, or others take it away
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be listed: {error.strerror}") from None
        return self.path / "generations" / min(names, default="none")

    @property
    def is_in_use(self) -> bool:
        return is_in_use(self.generation_dir)

    @property
    def used_at(self) -> float:
        """When it was opened last, in seconds since 1970. A time in the future, of a wrong clock, is not believed."""
        times = [self.facts.staged_at if self.facts else 0.0]
        with contextlib.suppress(OSError):
            times.insert(0, (self.path / USED_NAME).stat().st_mtime)
        return next((seconds for seconds in times if seconds <= time.time() + _CLOCK_SECONDS), 0.0)

    def source_state(self) -> str:
        """`current`, `stale`, or `source gone`."""
        try:
            current = None if self.facts is None else read_current(Path(self.facts.root))
        except PrecompileError:
            current = None
        if current is None or self.facts is None:
            return "source gone"
        return "current" if manifest_digest(current) == self.facts.manifest else "stale"

    def touch(self) -> None:
        with contextlib.suppress(OSError):
            os.utime(self.path / USED_NAME)


def manifest_digest(manifest: Manifest) -> str:
    return hashlib.sha256(manifest.to_json().encode("utf-8", "surrogateescape")).hexdigest()


def list_entries(directory: CacheDirectory) -> list[Entry]:
    return [read_entry(directory, name) for name in directory.entries()]


def read_entry(directory: CacheDirectory, name: str) -> Entry:
    path = directory.entry(name)
    try:
        return Entry(name, path, _facts(json.loads(read_whole(path / FACTS_NAME, _MAX_BYTES))))
    except UnreadableError as error:
        return Entry(name, path, None, error)
    except (OSError, ValueError, TypeError, KeyError, RecursionError, FormatError):
        return Entry(name, path, None)


def find_entry(directory: CacheDirectory, wanted: Wanted) -> Entry | None:
    """A complete entry that has all that is wanted: the very one, else one that has more.

    Raises UnreadableError when this process may not read the very one, or cannot at the moment.
    """
    exact = read_entry(directory, wanted.name)
    if exact.unreadable is not None:
        raise exact.unreadable
    if exact.facts is not None and exact.facts.covers(wanted):
        return exact
    entries = (read_entry(directory, name) for name in directory.entries())
    return next((entry for entry in entries if entry.facts is not None and entry.facts.covers(wanted)), None)


def _facts(value: Any) -> Facts:
    fields = value["fields"]
    if fields is not None and not isinstance(fields, list):
        raise FormatError("fields must be a list or null")
    given = {name: value[name] for name in Facts.__dataclass_fields__}
    return Facts(**{**given, "fields": None if fields is None else tuple(fields)})
