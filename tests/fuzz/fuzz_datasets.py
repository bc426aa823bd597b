"""The datasets that are damaged: tiny, of every kind, the same bytes each time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from written import write, write_manifest

from precompile.format.generation import generation_dir, read_current
from precompile.format.index import save_column
from precompile.format.schema import TEXT, FieldSpec
from precompile.pipeline.quarantine import Quarantined, write_quarantine

COUNT = 12
GENERATIONS = (1, 2)
_LABELS = (FieldSpec("label", "int64", ()), FieldSpec("note", TEXT, ()))
_SPLITS = {"train": 8, "val": 4}
_CLASSES = ("cat", "dög", "కుక్క")

KINDS: dict[str, dict[str, object]] = {
    "flat": {"fields": (FieldSpec("image", "uint8", (3, 8, 8)), *_LABELS), "store": "flat"},
    "lmdb": {"fields": (FieldSpec("image", "uint8", (3, 8, 8)), *_LABELS), "store": "lmdb"},
    "bmp": {"fields": (FieldSpec("image", "uint8", (3, 6, 5), "bmp"), *_LABELS), "store": "flat"},
    "sizes": {"fields": (FieldSpec("image", "uint8", (3, None, None), "raw_hwc"), *_LABELS), "store": "lmdb"},
    "bmp of any size": {"fields": (FieldSpec("image", "uint8", (1, None, None), "bmp"), *_LABELS), "store": "flat"},
    "clips": {
        "fields": (
            FieldSpec("spectrogram", "float16", (4, None), unit="ln power"),
            FieldSpec("waveform", "float32", (1, 10)),
            FieldSpec("duration_seconds", "float64", (), unit="s"),
            *_LABELS,
        ),
        "store": "flat",
    },
}


def kind_of(number: int) -> str:
    """Which dataset a case damages."""
    return list(KINDS)[number % len(KINDS)]


def write_all(home: Path) -> None:
    """One dataset of each kind, `home/<kind>`, with two generations that have everything alike but their values."""
    for number, (kind, keys) in enumerate(KINDS.items()):
        root = home / kind
        for generation in GENERATIONS:
            write(root, count=COUNT, splits=_SPLITS, num_shards=2, seed=10 * number + generation,
                  generation=generation, classes=_CLASSES, **keys)  # type: ignore[arg-type]  # fmt: skip
            _add_what_builds_read(root, generation)


def _add_what_builds_read(root: Path, generation: int) -> None:
    directory = generation_dir(root, generation)
    save_column(directory, "source.stat", np.full((COUNT, 4), 1234, np.int64))
    save_column(directory, "source.xxh3", np.arange(COUNT, dtype=np.uint64))
    rows = [
        Quarantined(f"bad{n}.jpg", f"/data/bad{n}.jpg", "train", "decode", "Error", "broken", 7, "0" * 16, 1)
        for n in range(2)
    ]
    write_quarantine(directory / "quarantine.jsonl", rows)
    manifest = replace(read_current(root), quarantined=len(rows))
    (directory / "manifest.json").unlink()
    write_manifest(root, manifest)
