"""A finished index and its shards -> the current generation, atomically."""

from __future__ import annotations

import datetime
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from precompile.errors import FormatError
from precompile.format.generation import generation_dir, shard_path
from precompile.format.lease import claim
from precompile.format.manifest import MANIFEST_NAME, Manifest, read_manifest
from precompile.format.shards import ShardMap
from precompile.pipeline.generation_writer import GenerationWriter
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.storage import sync_dir, sync_files, write_atomically

_READ_BACK = 64


def commit_generation(
    dirs: BuildDirs, writer: GenerationWriter, facts: Mapping[str, Any], classes: tuple[str, ...] | None
) -> Manifest:
    """Write a generation beside the others and make it the current one by one rename. Any crash leaves the old one."""
    sync_dir(dirs.shards)
    _read_back(dirs.root, writer)
    generation = _sweep_uncommitted(dirs) + 1
    unfinished = dirs.generations / f".{generation:06d}.{os.getpid()}.tmp"
    unfinished.mkdir()
    manifest = Manifest(
        generation=generation,
        schema=writer.schema,
        count=writer.count,
        classes=classes,
        splits=writer.splits,
        shards=writer.shards,
        index=writer.write_index(unfinished),
        fingerprint=writer.fingerprint(classes),
        quarantined=len(writer.quarantined),
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **facts,
    )
    text = manifest.to_json().encode()
    (unfinished / MANIFEST_NAME).write_bytes(text)
    sync_files(unfinished)
    unfinished.rename(generation_dir(dirs.root, generation))
    sync_dir(dirs.generations)
    write_atomically(dirs.root / MANIFEST_NAME, text)
    return manifest


def _sweep_uncommitted(dirs: BuildDirs) -> int:
    """Remove what builds left that ended before their commit; returns the largest number in use, 0 when there is none.

    Somebody may have put an older manifest back while a job reads a newer generation: that one stays.
    """
    largest = read_manifest(dirs.root / MANIFEST_NAME).generation if (dirs.root / MANIFEST_NAME).exists() else 0
    for path in sorted(dirs.generations.iterdir()):
        if path.match(".[0-9]*.tmp"):
            shutil.rmtree(path)
        elif path.name.isdecimal() and int(path.name) > largest:
            unlisted = dirs.generations / f".{path.name}.{os.getpid()}.tmp"
            with claim(path) as is_ours:
                if is_ours:
                    path.rename(unlisted)
                else:
                    largest = int(path.name)
            if is_ours:
                shutil.rmtree(unlisted)
    return largest


def _read_back(root: Path, writer: GenerationWriter) -> None:
    """Read some records as training will, before anybody can see the generation."""
    files = [shard_path(root, shard.file) for shard in writer.shards]
    shards = ShardMap(files, [shard.bytes for shard in writer.shards])
    for sample in np.linspace(0, writer.count - 1, min(_READ_BACK, writer.count)).astype(np.int64).tolist():
        shard, offset, length = writer.arrays["record"][sample].tolist()
        if zlib.crc32(shards.view(int(shards.starts[shard]) + offset, length).data) != writer.arrays["crc32"][sample]:
            raise FormatError(
                f"{files[shard]}: a record read back differs from what was written; nothing was committed. "
                f"`precompile verify {root} --repair` compiles damaged shards again"
            )
