"""A generation, kept while it is looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from precompile.format.generation import generation_dir, read_current, read_generation
from precompile.format.lease import take_lease
from precompile.format.manifest import Manifest


@contextlib.contextmanager
def hold(root: Path, generation: int | None = None) -> Iterator[Manifest]:
    """Inside, no build removes the generation; None is the current one. Raises DatasetNotFoundError or FormatError."""
    while True:
        manifest = read_generation(root, generation)
        lease = take_lease(generation_dir(root, manifest.generation))
        if (
            generation is not None or read_current(root).generation == manifest.generation
        ):  # else it may be gone already
            break
    yield manifest
    del lease
