"""What lies in an output: what readers see there, and what a finished build must leave, to the byte."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from builds import assert_matches, cli

from precompile import CompiledDataset
from precompile.errors import DatasetNotFoundError

Reading = tuple[object, ...]


def current_generation(out: Path) -> int:
    number: int = json.loads((out / "manifest.json").read_text())["generation"]
    return number


def reading_of(dataset: CompiledDataset) -> Reading:
    """All that training sees."""
    rows = [(key, row["label"], np.asarray(row["image"]).tobytes()) for key, row in zip(dataset.keys, dataset)]
    splits = [(split.name, split.count) for split in dataset.manifest.splits]
    return dataset.fingerprint, dataset.classes, splits, rows


def read(out: Path) -> Reading | None:
    """What a reader that comes now sees; None when there is no dataset, as the command line says too."""
    try:
        return reading_of(CompiledDataset(out))
    except DatasetNotFoundError:
        found = cli("info", out)
        assert found.code == 1
        assert_matches("no such directory|no compiled dataset here", found.error)
        return None


def check_whole(out: Path) -> None:
    """Every checksum of the current generation is right."""
    found = cli("verify", out, "--full")
    assert found.code == 0, found.out + found.err


@dataclass(frozen=True)
class Finished:
    """All that a build leaves, apart from times and the generation's number."""

    files: dict[str, str]
    """Digest by relative path."""
    manifest: dict[str, Any]

    @classmethod
    def of(cls, out: Path) -> Finished:
        folder = f"generations/{current_generation(out):06d}/"
        files = {}
        for path in sorted(out.rglob("*")):
            name = str(path.relative_to(out)).replace(folder.rstrip("/"), "generations/current")
            is_content = path.is_file() and path.name != "manifest.json"
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest() if is_content else ""
        manifest = json.loads((out / "manifest.json").read_text())
        for name in ("created_at", "generation"):
            del manifest[name]
        return cls(files, manifest)

    def check(self, out: Path) -> None:
        """`out` holds the same bytes and nothing else: nothing in `build/`, and nowhere a temporary file."""
        found = Finished.of(out)
        assert list((out / "build").iterdir()) == []
        assert sorted(found.files) == sorted(self.files)
        assert {name for name in found.files if found.files[name] != self.files[name]} == set()
        assert found.manifest == self.manifest
