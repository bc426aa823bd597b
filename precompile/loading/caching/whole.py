"""Staging a whole generation: every file, byte for byte."""

from __future__ import annotations

import functools
from pathlib import Path

from precompile.format.generation import generation_dir, shard_path
from precompile.format.manifest import MANIFEST_NAME, Manifest
from precompile.format.stored import Stored
from precompile.loading.caching.copying import Job, copy_file


class WholeCopy:
    """What is copied to stage all of a generation.

    sizes: bytes of each file, by its name in the entry.
    """

    def __init__(self, source: Stored) -> None:
        self._root, self._manifest = source.root, source.manifest
        self._files: dict[str, tuple[Path, int, str]] = {}
        directory = generation_dir(source.root, source.manifest.generation)
        for shard in sorted(source.manifest.shards, key=lambda shard: -shard.bytes):
            self._files[f"shards/{shard.file}"] = (shard_path(source.root, shard.file), shard.bytes, shard.xxh3)
        for name, item in source.manifest.index.items():
            self._files[f"{directory.relative_to(source.root)}/{name}"] = (directory / name, item.bytes, item.xxh3)
        self.sizes = {name: num_bytes for name, (_, num_bytes, _) in self._files.items()}
        self.sizes.update(manifest_sizes(source.manifest))

    @property
    def copied_bytes(self) -> int:
        return sum(num_bytes for _, num_bytes, _ in self._files.values())

    def jobs(self, folder: Path) -> list[Job]:
        return [
            functools.partial(copy_file, path, folder / name, num_bytes, checksum)
            for name, (path, num_bytes, checksum) in self._files.items()
        ]

    def finish(self, folder: Path) -> Manifest:
        """Called when all jobs are done; returns the manifest of the entry."""
        return self._manifest


def manifest_paths(generation: int) -> tuple[str, str]:
    """The one with the lease, and the one that makes a folder a dataset; names within it."""
    return f"generations/{generation:06d}/{MANIFEST_NAME}", MANIFEST_NAME


def manifest_sizes(manifest: Manifest) -> dict[str, int]:
    num_bytes = len(manifest.to_json().encode("utf-8", "surrogateescape"))
    return dict.fromkeys(manifest_paths(manifest.generation), num_bytes)
