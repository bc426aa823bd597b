"""Removing old generations, and the shards that no kept one uses."""

from __future__ import annotations

import os
import shutil

from precompile.errors import FormatError
from precompile.format.generation import generation_dir, list_generations, read_current
from precompile.format.lease import claim
from precompile.format.manifest import MANIFEST_NAME, read_manifest
from precompile.pipeline.journal import load_receipts
from precompile.pipeline.layout import BuildDirs

_SHARDS = tuple("[0-9a-f]" * 32 + suffix for suffix in (".lmdb", ".flat"))


def prune(dirs: BuildDirs, *, keep: int) -> list[int]:
    """Remove all but the newest `keep` generations, and shards without a generation; returns what was removed.

    Older ones stay until there are `keep` of different content: nights on which files were only touched do not push
    out what differs. The current generation stays, so does one that a training job has open, and so do the finished
    shards of a build that was stopped. What an earlier prune left half deleted is removed too. The lock on `dirs`
    must be held.
    """
    for left in dirs.generations.glob(".[0-9]*.tmp"):
        shutil.rmtree(left)
    generations = list_generations(dirs.root)
    kept = {read_current(dirs.root).generation, *generations[-keep:], *_different(dirs, generations, keep)}
    removed = [generation for generation in generations if generation not in kept and _remove(dirs, generation)]
    try:
        used = _used_shards(dirs)
    except FormatError:
        return removed  # a damaged old generation does not say which shards are its own: all stay
    for pattern in _SHARDS:
        for path in dirs.shards.glob(pattern):
            if path.name not in used and path.is_file():
                path.unlink()
    return removed


def _different(dirs: BuildDirs, generations: list[int], count: int) -> list[int]:
    """The newest generation of each of the `count` newest contents."""
    newest: dict[str, int] = {}
    for generation in reversed(generations):
        try:
            manifest = read_manifest(generation_dir(dirs.root, generation) / MANIFEST_NAME)
        except FormatError:
            continue
        if len(newest) < count:
            newest.setdefault(manifest.fingerprint, generation)
    return list(newest.values())


def _remove(dirs: BuildDirs, generation: int) -> bool:
    directory = generation_dir(dirs.root, generation)
    unlisted = dirs.generations / f".{directory.name}.{os.getpid()}.tmp"
    with claim(directory) as is_ours:
        if is_ours:
            directory.rename(unlisted)  # at once, so that a crash leaves no generation with files missing
    if is_ours:
        shutil.rmtree(unlisted)
    return is_ours


def _used_shards(dirs: BuildDirs) -> set[str]:
    """Of every generation that is there, even if a rollback or a crash left it above the current one."""
    manifests = [read_manifest(path) for path in dirs.generations.glob(f"[0-9]*/{MANIFEST_NAME}")]
    used = {shard.file for manifest in [read_current(dirs.root), *manifests] for shard in manifest.shards}
    receipts = [*load_receipts(dirs.receipts), *load_receipts(dirs.kept)]
    return used | {receipt.shard.file for receipt in receipts if receipt.shard is not None}
