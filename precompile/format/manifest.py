"""The JSON that makes a directory a dataset. It is untrusted input: everything is checked before use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from precompile.errors import DatasetNotFoundError, FormatError, NewerFormatError
from precompile.format.files import read_whole
from precompile.format.schema import Schema, checked_text

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
_SHARD_FILE = re.compile(r"[0-9a-f]{32}\.(lmdb|flat)")
_INDEX_FILE = re.compile(r"[a-z][a-z0-9_.]*\.(npy|jsonl)")
_MAX_BYTES = 1 << 28
"""Far more than a million shards and classes need; a damaged file must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One immutable file in `shards/`."""

    file: str
    """`<xxh3 of the file>.lmdb` or `.flat`."""
    bytes: int
    records: int
    xxh3: str
    """XXH3-128 of the whole file, 32 hex digits."""
    versions: Mapping[str, str]
    """Versions of the libraries that made its values."""

    def __post_init__(self) -> None:
        if not _SHARD_FILE.fullmatch(self.file):
            raise FormatError(f"a shard's file must match {_SHARD_FILE.pattern}, got {self.file!r}")
        _check_count("shard bytes", self.bytes)
        if self.bytes == 0:
            raise FormatError(f"shard {self.file} must have at least 1 byte, got bytes=0")
        _check_count("shard records", self.records)
        names = self.versions.items() if isinstance(self.versions, Mapping) else [(None, None)]
        if not all(isinstance(text, str) for pair in names for text in pair):
            raise FormatError(f"versions of shard {self.file} must be texts by name, got {self.versions!r}")


@dataclass(frozen=True, slots=True)
class Split:
    """A run of samples: `start` to `start + count` in the index."""

    name: str
    start: int
    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise FormatError(f"a split's name must be a string, got {self.name!r}")
        checked_text(self.name)
        _check_count(f"start of split {self.name}", self.start)
        _check_count(f"count of split {self.name}", self.count)


@dataclass(frozen=True, slots=True)
class IndexFile:
    """Size and checksum of one file of the generation's folder."""

    bytes: int
    xxh3: str

    def __post_init__(self) -> None:
        _check_count("index file bytes", self.bytes)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a reader must know before it opens a file. Raises FormatError when it contradicts itself."""

    generation: int
    schema: Schema
    count: int
    """Samples in the index; may exceed the inputs when one file gives several samples."""
    classes: tuple[str, ...] | None
    """Class i is named classes[i]; None when there are no labels, or they are plain integers."""
    splits: tuple[Split, ...]
    """One after another, together all samples."""
    shards: tuple[Shard, ...]
    index: Mapping[str, IndexFile]
    """The files of the generation's folder beside its manifest."""
    fingerprint: str
    """XXH3-128 over schema, classes, splits, keys, columns, shapes and record checksums: content only."""
    store: str
    recipe: Mapping[str, Any]
    """Resolved: every key, and the parameters of the engine and the features."""
    recipe_digest: str
    source: Mapping[str, Any]
    """`root`, `kind`, `media`, and `digest` (names, sizes and times of what was planned)."""
    quarantined: int
    left_out: Mapping[str, int]
    created_at: str
    made_by: str
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        _check_count("count", self.count)
        _check_count("generation", self.generation)
        _check_count("quarantined", self.quarantined)
        names = [split.name for split in self.splits]
        if len(set(names)) != len(names):
            raise FormatError(f"names of splits must be unique, got {names}")
        end = 0
        for split in self.splits:
            if split.start != end:
                raise FormatError(f"split {split.name} must start at {end}, got {split.start}")
            end += split.count
        if end != self.count:
            raise FormatError(f"the splits hold {end} samples, the manifest says {self.count}")
        for name in self.index:
            if not _INDEX_FILE.fullmatch(name):
                raise FormatError(f"an index file must match {_INDEX_FILE.pattern}, got {name!r}")

    def split(self, name: str) -> Split:
        for split in self.splits:
            if split.name == name:
                return split
        raise ValueError(f"split must be one of {', '.join(s.name for s in self.splits)}, got {name!r}")

    def to_json(self) -> str:
        value = {field: getattr(self, field) for field in self.__slots__}
        value["schema"] = self.schema.to_json()
        for field in ("splits", "shards"):
            value[field] = [asdict(item) for item in value[field]]
        value["index"] = {name: asdict(item) for name, item in sorted(self.index.items())}
        return json.dumps({"format_version": self.format_version, **value}, indent=1, sort_keys=False) + "\n"


def parse_manifest(text: str | bytes, where: Path) -> Manifest:
    """Check and build a manifest. Raises FormatError naming `where` and what is wrong."""
    try:
        value = json.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: not valid JSON ({error}); restore it from generations/, or build again") from None
    version = value.get("format_version") if isinstance(value, dict) else None
    if type(version) is not int or version < 1:
        raise FormatError(
            f"{where}: expected a precompile manifest with format_version, found none; is this a dataset?"
        )
    if version > FORMAT_VERSION:
        raise NewerFormatError(
            f"{where}: format_version {version} is newer than {FORMAT_VERSION}, "
            "the newest this precompile reads; upgrade precompile"
        )
    try:
        return _build(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
        raise FormatError(
            f"{where}: damaged manifest: {reason}; restore it from generations/, or build again"
        ) from None
    except FormatError as error:
        raise FormatError(f"{where}: damaged manifest: {error}") from None


def read_manifest(path: Path) -> Manifest:
    """Raises DatasetNotFoundError when there is no such file, FormatError when it is damaged or newer."""
    try:
        return parse_manifest(read_whole(path, _MAX_BYTES), path)
    except FileNotFoundError:
        raise DatasetNotFoundError(
            f"{path.parent}: no compiled dataset here (no {path.name}); run `precompile build`"
        ) from None


def _build(value: dict[str, Any]) -> Manifest:
    classes = value["classes"]
    if classes is not None and (not isinstance(classes, list) or not all(isinstance(name, str) for name in classes)):
        raise FormatError("classes must be a list of strings or null")
    return Manifest(
        generation=value["generation"],
        schema=Schema.from_json(value["schema"]),
        count=value["count"],
        classes=None if classes is None else tuple(map(checked_text, classes)),
        splits=tuple(Split(**_known(Split, item)) for item in value["splits"]),
        shards=tuple(Shard(**_known(Shard, item)) for item in value["shards"]),
        index={name: IndexFile(**_known(IndexFile, item)) for name, item in dict(value["index"]).items()},
        fingerprint=checked_text(str(value["fingerprint"])),
        store=checked_text(str(value["store"])),
        recipe=dict(value["recipe"]),
        recipe_digest=checked_text(str(value["recipe_digest"])),
        source=dict(value["source"]),
        quarantined=value["quarantined"],
        left_out=dict(value["left_out"]),
        created_at=checked_text(str(value["created_at"])),
        made_by=checked_text(str(value["made_by"])),
        format_version=value["format_version"],
    )


def _known(kind: type, item: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that this version knows; later versions may add others."""
    return {field.name: item[field.name] for field in fields(kind)}


def _check_count(name: str, value: Any) -> None:
    if type(value) is not int or not 0 <= value < 2**62:
        raise FormatError(f"{name} must be an integer that is at least 0, got {value!r}")
