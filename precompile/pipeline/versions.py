"""Versions of the libraries whose arithmetic is in the stored values."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable, Mapping

from precompile.format.manifest import Shard

_LIBRARIES = {"image": ("pillow", "opencv-python-headless", "torch"), "audio": ("soundfile", "torchaudio", "torch")}


@functools.cache
def library_versions(media: str) -> dict[str, str]:
    """Name -> version of numpy and of the libraries that decode and transform this media."""
    return {name: _version(name) for name in ("numpy", *_LIBRARIES[media])}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def mixed_versions(shards: Iterable[Shard]) -> dict[str, tuple[str, ...]]:
    """Libraries of which the shards have several versions: their values may differ in the last bit."""
    versions: dict[str, set[str]] = {}
    for shard in shards:
        for name, version in shard.versions.items():
            versions.setdefault(name, set()).add(version)
    return {name: tuple(sorted(found)) for name, found in sorted(versions.items()) if len(found) > 1}


def describe_mix(mix: Mapping[str, tuple[str, ...]]) -> str:
    """Such as `pillow 11.3.0 and 12.0.0`."""
    return ", ".join(f"{name} {' and '.join(versions)}" for name, versions in mix.items())
