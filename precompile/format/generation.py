"""Which generations a dataset has, and where their files lie."""

from __future__ import annotations

import os
from pathlib import Path

from precompile.errors import DatasetNotFoundError, FormatError
from precompile.format.manifest import MANIFEST_NAME, Manifest, read_manifest


def generation_dir(root: Path, generation: int) -> Path:
    return root / "generations" / f"{generation:06d}"


def shard_path(root: Path, file: str) -> Path:
    return root / "shards" / file


def list_generations(root: Path) -> list[int]:
    """The committed generations that are still there, ascending; a number above the current one was never committed."""
    current = read_current(root).generation
    found = []
    for path in (root / "generations").glob("*/" + MANIFEST_NAME):
        if path.parent.name.isdecimal() and int(path.parent.name) <= current:
            found.append(int(path.parent.name))
    return sorted(found)


def read_current(root: Path) -> Manifest:
    """The manifest of the current generation. Raises DatasetNotFoundError or FormatError."""
    try:
        return read_manifest(root / MANIFEST_NAME)
    except DatasetNotFoundError:
        if os.path.exists(root / ".precompile.lock") and not any((root / "generations").glob("[0-9]*")):
            raise DatasetNotFoundError(
                f"{root}: no compiled dataset here yet: its first build is at work or was stopped; "
                "the same `precompile build` command goes on"
            ) from None
        if os.path.exists(root):
            raise
        raise DatasetNotFoundError(f"{root}: no such directory; run `precompile build SOURCE {root}`") from None


def read_generation(root: Path, generation: int | None) -> Manifest:
    """The manifest of one generation; None is the current one. Raises DatasetNotFoundError or FormatError."""
    current = read_current(root)
    if generation is None or generation == current.generation:
        return current
    path = generation_dir(root, generation) / MANIFEST_NAME
    try:
        if generation > current.generation:
            raise DatasetNotFoundError
        manifest = read_manifest(path)
    except DatasetNotFoundError:
        there = ", ".join(map(str, list_generations(root))) or "none"
        raise DatasetNotFoundError(f"{root}: no generation {generation}; there are: {there}") from None
    if manifest.generation != generation:
        raise FormatError(
            f"{path}: expected the manifest of generation {generation}, found that of {manifest.generation}"
        )
    return manifest
