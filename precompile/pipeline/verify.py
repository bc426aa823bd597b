"""Is a compiled dataset whole, and is it what its source says?"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precompile.errors import FormatError, PrecompileError, SourceError
from precompile.format.generation import generation_dir, read_current, shard_path
from precompile.format.manifest import MANIFEST_NAME
from precompile.format.record import encode
from precompile.format.stored import Stored
from precompile.pipeline.checksum import file_checksum
from precompile.pipeline.compile_sample import make_compiler
from precompile.pipeline.fingerprint import fingerprint_of
from precompile.pipeline.recipe import make_recipe
from precompile.pipeline.sources import open_source
from precompile.pipeline.storage import read_file


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    where: str
    """The file or the sample's key."""
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def verify(root: Path, *, full: bool = False, against_source: int | None = None) -> tuple[list[Finding], int]:
    """Check the current generation; returns the findings and how many samples were compared with the source.

    Always: that all files are there with the recorded sizes, and that every record lies within its shard.
    full: every checksum, of shards, index files and records.
    against_source: decode that many inputs again, spread evenly (0: all), and compare with what is stored.
    Raises DatasetNotFoundError or FormatError when the manifest itself cannot be read.
    """
    manifest = read_current(root)
    findings = [*_check_manifest(root), *_check_files(root, full=full)]
    if findings:
        return findings, 0
    try:
        stored = Stored(root, manifest.generation)
        findings += _check_records(stored, full=full)
    except FormatError as error:
        return [Finding(str(root), str(error))], 0
    if against_source is None or findings:
        return findings, 0
    numbers = _spread(stored.manifest.count, against_source)
    findings += _compare_with_source(stored, numbers)
    return findings, len(numbers)


def _check_manifest(root: Path) -> Iterator[Finding]:
    """The manifest that readers use must be the one that was committed."""
    current = read_current(root)
    copy = generation_dir(root, current.generation) / MANIFEST_NAME
    if not copy.is_file():
        yield Finding(str(copy), "the file is missing")
    elif copy.read_bytes() != (root / MANIFEST_NAME).read_bytes():
        yield Finding(str(root / MANIFEST_NAME), f"differs from the committed {copy}; one of them was changed")


def _check_files(root: Path, *, full: bool) -> Iterator[Finding]:
    manifest = read_current(root)
    directory = generation_dir(root, manifest.generation)
    expected = [(shard_path(root, shard.file), shard.bytes, shard.xxh3) for shard in manifest.shards]
    expected += [(directory / name, item.bytes, item.xxh3) for name, item in manifest.index.items()]
    for path, num_bytes, checksum in expected:
        if not path.is_file():
            yield Finding(str(path), "the file is missing")
        elif path.stat().st_size != num_bytes:
            yield Finding(str(path), f"expected {num_bytes} bytes, found {path.stat().st_size}")
        elif full and (found := file_checksum(path)) != checksum:
            yield Finding(str(path), f"expected checksum {checksum}, found {found}; restore it, or build --rebuild")


def _check_records(stored: Stored, *, full: bool) -> Iterator[Finding]:
    for start in range(0, stored.manifest.count, 65_536):
        stored.places(np.arange(start, min(start + 65_536, stored.manifest.count)))
    if not full:
        return
    if fingerprint_of(stored) != stored.manifest.fingerprint:
        where = str(stored.root / MANIFEST_NAME)
        yield Finding(where, "the fingerprint does not fit schema, classes, splits, keys, columns and checksums")
    for number in range(stored.manifest.count):
        if zlib.crc32(stored.record(number).data) != stored.index.crc32[number]:
            yield Finding(stored.index.keys[number], "the record's checksum differs")


def _spread(count: int, wanted: int) -> list[int]:
    size = count if wanted == 0 else min(wanted, count)
    numbers: list[int] = np.unique(np.linspace(0, count - 1, size).round().astype(np.int64)).tolist()
    return numbers


def _compare_with_source(stored: Stored, numbers: list[int]) -> Iterator[Finding]:
    facts = stored.manifest.recipe
    recipe = make_recipe(**{key: value for key, value in facts.items() if key != "resolved"})
    root = str(stored.manifest.source.get("root", ""))
    if not root:
        raise SourceError("this dataset was built from a Python object; --against-source needs a folder or a table")
    source = open_source(Path(root), recipe)
    compiler = make_compiler(recipe, source.media)
    wanted = {stored.index.keys[number]: number for number in numbers}
    for index in range(len(source)):
        sample = source[index]
        number = wanted.pop(sample.key, None)
        if number is None:
            continue
        path = sample.parts[source.media]
        assert isinstance(path, Path)
        try:
            record = encode(stored.schema, compiler(read_file(path)).arrays)
        except PrecompileError as error:
            yield Finding(sample.key, f"cannot be compiled again: {error}")
            continue
        if not np.array_equal(record, stored.record(number)):
            yield Finding(sample.key, "differs from what the source gives now")
    for key in wanted:
        yield Finding(key, "is no longer in the source")
