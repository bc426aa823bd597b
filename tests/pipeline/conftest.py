"""Builds whose workers are disturbed, and whose executor is watched."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from watched import Watch, watched

from precompile.pipeline import compile_plan


@pytest.fixture
def raw(tmp_path: Path, make_photos: Callable[..., Path]) -> Path:
    """24 jpg of 20x20 in three class folders, 1200 bytes each when compiled."""
    return make_photos(tmp_path / "raw", count=24, splits=(), size=(20, 20))


@pytest.fixture
def in_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """in_workers(code): every Python process that starts later runs `code` first; returns the folder it is in."""

    def install(code: str) -> Path:
        directory = tmp_path / "site"
        directory.mkdir()
        (directory / "sitecustomize.py").write_text(code)
        monkeypatch.syspath_prepend(directory)
        monkeypatch.setenv("MARKER", str(tmp_path / "marker"))
        return directory

    return install


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Watch]:
    """watch(alone={…}, probes=…, memory_bytes=…, deadline=…) changes builds that follow, and tells what they did."""

    def install(alone: Collection[int] = (), *, probes: bool = False, **limits: Any) -> Watch:
        seen = Watch()
        monkeypatch.setattr(compile_plan, "LocalExecutor", watched(seen, alone, probes=probes, limits=limits))
        return seen

    return install
