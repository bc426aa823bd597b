"""Is a compiled dataset whole?"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from precompile.errors import FormatError
from precompile.format.files import cannot_be_read, open_regular
from precompile.format.generation import generation_dir, shard_path
from precompile.format.index import Index, open_array
from precompile.format.manifest import MANIFEST_NAME, Manifest
from precompile.pipeline.checksum import file_checksum
from precompile.pipeline.consistency import check_rows, check_texts, lies_in_shard
from precompile.pipeline.finding import Finding
from precompile.pipeline.fingerprint import fingerprint
from precompile.pipeline.hold import hold
from precompile.pipeline.input_stat import STAT_FIELDS
from precompile.pipeline.quarantine import QUARANTINE_NAME, read_quarantine

__all__ = ["Finding", "verify"]

_NAMED = 20
"""Findings a shard, at most."""
_EXAMPLES = 3


def verify(root: Path, *, full: bool = False, generation: int | None = None) -> list[Finding]:
    """Check one generation; None is the current one.

    Always: that all files are there with the recorded sizes, and that the index is consistent: every record within its
    shard, every label a class, columns of the right length. full: every checksum, of shards, index files and records.
    Raises DatasetNotFoundError or FormatError when the manifest itself cannot be read.
    """
    with hold(root, generation) as manifest:
        directory = generation_dir(root, manifest.generation)
        findings = list(_check_manifest(root, directory)) if generation is None else []
        findings += _check_quarantine(directory, manifest)
        index, faults = _open_index(directory, manifest, full=full)
        findings += faults
        if index is not None:
            findings += check_rows(manifest, index)
            if full:
                findings += _check_fingerprint(root, manifest, index)
        for number in range(len(manifest.shards)):
            findings += _check_shard(root, manifest, number, index, full=full)
    return findings


def _check_manifest(root: Path, directory: Path) -> Iterator[Finding]:
    """The manifest that readers use must be the one that was committed."""
    current, copy = root / MANIFEST_NAME, directory / MANIFEST_NAME
    what = _file_fault(copy, current.stat().st_size, file_checksum(current))
    if what:
        yield Finding(f"must equal {current}, {what}; copy the one that is right over the other", str(copy))


def _check_quarantine(directory: Path, manifest: Manifest) -> Iterator[Finding]:
    path = directory / QUARANTINE_NAME
    try:
        if os.path.lexists(path):
            os.close(open_regular(path))
        found = len(read_quarantine(path))
    except (FormatError, FileNotFoundError) as error:
        yield Finding(_without(path, error), str(path))
    else:
        if found != manifest.quarantined:
            yield Finding(f"expected {manifest.quarantined} rows, found {found}", str(path))


def _open_index(directory: Path, manifest: Manifest, *, full: bool) -> tuple[Index | None, list[Finding]]:
    """The index, if it can be trusted to name samples; and what is wrong with its files."""
    faults = []
    for name, item in manifest.index.items():
        what = _file_fault(directory / name, item.bytes, item.xxh3 if full else None)
        if what:
            faults.append(Finding(what, str(directory / name)))
    if any(finding.file.endswith(".npy") for finding in faults):
        return None, faults
    try:
        index = Index(directory, manifest.schema, manifest.count)
        open_array(directory / "source.stat.npy", "int64", (manifest.count, len(STAT_FIELDS)))
        open_array(directory / "source.xxh3.npy", "uint64", (manifest.count,))
    except FormatError as error:
        path = Path(str(error).partition(": ")[0])
        path = path if path.parent == directory else directory
        return None, [*faults, Finding(_without(path, error), str(path))]
    damaged = list(check_texts(index))
    return (None if damaged else index), faults + damaged


def _file_fault(path: Path, num_bytes: int, checksum: str | None) -> str:
    """What is wrong with a file, or nothing. checksum: None is not compared."""
    try:
        descriptor = open_regular(path)
        found_bytes = os.fstat(descriptor).st_size
        os.close(descriptor)
        if found_bytes != num_bytes:
            return f"expected {num_bytes} bytes, found {found_bytes}"
        if checksum is not None and (found := file_checksum(path)) != checksum:
            return f"expected checksum {checksum}, found {found}"
    except FileNotFoundError:
        return "the file is missing"
    except FormatError as error:
        return _without(path, error)
    except OSError as error:
        return _without(path, cannot_be_read(path, error))
    return ""


def _without(path: Path, error: Exception) -> str:
    """The message without the file that it begins with."""
    return str(error).removeprefix(f"{path}: ")


def _check_shard(root: Path, manifest: Manifest, number: int, index: Index | None, *, full: bool) -> Iterator[Finding]:
    """The file; if full, each record against its checksum too. index: None, and no sample is named."""
    shard = manifest.shards[number]
    path = shard_path(root, shard.file)
    what = _file_fault(path, shard.bytes, shard.xxh3 if full else None)
    if index is None:
        if what:
            yield Finding(what, str(path), shard=shard.file)
        return
    if not what and not full:
        return
    rows = np.flatnonzero(index.record[:, 0] == number)
    if what:
        named = ", ".join(index.keys.take(rows[:_EXAMPLES]))
        what += f"; it holds {len(rows)} samples: {named}{', …' if len(rows) > _EXAMPLES else ''}"
        yield Finding(what, str(path), shard=shard.file)
    bad = list(_bad_records(manifest, index, rows, path)) if full else []
    room = _NAMED - bool(what)
    for row in bad if len(bad) <= room else bad[: room - 1]:
        yield Finding("the record's checksum differs", str(path), sample=index.keys[row], shard=shard.file)
    if len(bad) > room:
        yield Finding(f"{len(bad) - room + 1} more records have another checksum", str(path), shard=shard.file)


def _bad_records(manifest: Manifest, index: Index, rows: np.ndarray, path: Path) -> Iterator[int]:
    """Rows of one shard whose bytes are not those that were written, in the order in which they lie there."""
    rows = rows[lies_in_shard(manifest, index.record[rows])]
    rows = rows[np.argsort(index.record[rows, 1], kind="stable")]
    try:
        descriptor = open_regular(path)
    except (FormatError, FileNotFoundError):
        return  # every record is lost; the finding of the file says so
    with os.fdopen(descriptor, "rb") as file:
        for row in rows.tolist():
            _, offset, length = index.record[row].tolist()
            try:
                file.seek(offset)
                data = file.read(length)
            except OSError:
                data = b""
            if zlib.crc32(data) != index.crc32[row]:
                yield row


def _check_fingerprint(root: Path, manifest: Manifest, index: Index) -> Iterator[Finding]:
    arrays = {"record": index.record, "crc32": index.crc32}
    for spec in manifest.schema.arrays:
        if (shape := index.shape_column(spec.name)) is not None:
            arrays[f"shape.{spec.name}"] = shape
    found = fingerprint(
        manifest.schema, manifest.classes, manifest.splits, keys=index.keys, arrays=arrays, columns=index.columns
    )
    if found != manifest.fingerprint:
        what = "the fingerprint does not fit schema, classes, splits, keys, columns and checksums"
        yield Finding(what, str(root / MANIFEST_NAME))
