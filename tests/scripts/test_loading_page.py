"""docs/loading.md: every block of code on the page runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from written import write

from precompile import CompiledDataset
from precompile.format.schema import FieldSpec

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "loading.md").read_text()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A folder with photos.pc, and the names that the page takes for granted."""
    label = FieldSpec("label", "int64", ())
    image, mask = FieldSpec("image", "uint8", (3, 230, 240)), FieldSpec("mask", "uint8", (1, 230, 240))
    write(tmp_path / "photos.pc", [image, label], 30, splits={"train": 20, "val": 10})
    write(tmp_path / "pairs.pc", [image, mask], 8)
    write(tmp_path / "clips.pc", [FieldSpec("spectrogram", "float16", (80, None)), label], 30)
    monkeypatch.chdir(tmp_path)
    return {
        "torch": torch,
        "np": np,
        "model": torch.nn.Linear(1, 1),
        "epoch": 0,
        "clips": CompiledDataset("clips.pc"),
        "pairs": CompiledDataset("pairs.pc"),
    }


def test_every_block_of_code_runs(site: dict[str, Any]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 6
    for block in blocks:
        code = block.replace('"cuda"', '"cpu"').replace("range(90)", "range(2)")
        if "for (spectrograms, lengths), labels" in code:
            site["clips"] = CompiledDataset("clips.pc", fields=("spectrogram", "label"))
        exec(compile(code, "docs/loading.md", "exec", dont_inherit=True), site)
    assert sum(len(labels) for _, labels in site["loader"]) == 20
