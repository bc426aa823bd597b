from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from precompile.errors import DatasetNotFoundError, FormatError
from precompile.format.generation import generation_dir, list_generations, read_current, read_generation


@pytest.fixture
def two(copy_of: Callable[[Path], Path], sharded_photos: Path) -> Path:
    """A dataset whose generation 2 is current and has another fingerprint than 1."""
    root = copy_of(sharded_photos)
    manifest = json.loads((root / "manifest.json").read_text())
    text = json.dumps({**manifest, "generation": 2, "fingerprint": "2" * 32})
    generation_dir(root, 2).mkdir()
    for path in (generation_dir(root, 2) / "manifest.json", root / "manifest.json"):
        path.write_text(text)
    return root


def test_generations_by_number(two: Path) -> None:
    assert list_generations(two) == [1, 2]
    assert read_current(two).generation == 2
    assert read_generation(two, None) == read_generation(two, 2) == read_current(two)
    assert read_generation(two, 1).generation == 1
    assert read_generation(two, 1).fingerprint != "2" * 32


def test_unfinished_generations_and_other_files_are_not_generations(two: Path) -> None:
    (two / "generations" / ".000003.77.tmp").mkdir()
    (two / "generations" / ".000003.77.tmp" / "manifest.json").touch()
    (two / "generations" / "000004").mkdir()
    (two / "generations" / "notes.txt").touch()
    assert list_generations(two) == [1, 2]


def test_a_generation_above_the_current_one_was_never_committed(two: Path) -> None:
    (two / "manifest.json").write_bytes((generation_dir(two, 1) / "manifest.json").read_bytes())
    assert list_generations(two) == [1]
    with pytest.raises(DatasetNotFoundError, match="no generation 2; there are: 1"):
        read_generation(two, 2)


def test_a_generation_that_is_not_there(two: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="no generation 9; there are: 1, 2"):
        read_generation(two, 9)


def test_the_manifest_of_another_generation_in_its_place(two: Path) -> None:
    (two / "manifest.json").replace(generation_dir(two, 1) / "manifest.json")
    (two / "manifest.json").write_bytes((generation_dir(two, 2) / "manifest.json").read_bytes())
    with pytest.raises(FormatError, match=r"000001/manifest.json: expected the manifest of generation 1, found .* 2"):
        read_generation(two, 1)


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="flowers: no such directory; run `precompile build SOURCE"):
        read_current(tmp_path / "flowers")
