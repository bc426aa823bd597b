"""Raw folders for tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from builds import build, save_image


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """12 png files of 8x8 in c0/ and c1/."""
    for number in range(12):
        save_image(tmp_path / "raw" / f"c{number % 2}" / f"{number:02d}.png", number)
    return tmp_path / "raw"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `raw`, and `out` compiled from it. Read only."""
    home = tmp_path_factory.mktemp("built")
    for number in range(4):
        save_image(home / "raw" / f"c{number % 2}" / f"{number}.png", number)
    assert build(home / "raw", home / "out", "--quiet").code == 0
    return home
