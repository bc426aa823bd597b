from __future__ import annotations

from pathlib import Path

import pytest
from builds import unchanged

from precompile import machine
from precompile.errors import ForeignDirectoryError, NoRoomError, RecipeError
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.lock import locked
from precompile.pipeline.output import check_apart, check_room, current_manifest, prepare


@pytest.mark.parametrize(
    ("source", "out", "message"),
    [
        ("raw", "raw", "SOURCE and OUT are the same directory; choose another OUT"),
        ("raw", "raw/../raw", "SOURCE and OUT are the same directory"),
        ("raw", "raw/out", r"OUT lies inside SOURCE .*/raw, the next build would take it as input"),
        ("raw", "raw/a/b/out", "OUT lies inside SOURCE"),
        ("raw/a", "raw", r"SOURCE lies inside OUT .*/raw; choose another OUT"),
        ("raw", "link", "SOURCE and OUT are the same directory"),
        ("link", "raw/out", "OUT lies inside SOURCE"),
        ("raw/list.csv", "raw/list.csv", "SOURCE and OUT are the same path"),
    ],
)
def test_source_and_output_must_lie_apart(tmp_path: Path, source: str, out: str, message: str) -> None:
    (tmp_path / "raw" / "a").mkdir(parents=True)
    (tmp_path / "raw" / "list.csv").write_text("path\n")
    (tmp_path / "link").symlink_to(tmp_path / "raw")
    with unchanged(tmp_path), pytest.raises(RecipeError, match=message):
        check_apart(tmp_path / source, tmp_path / out)


@pytest.mark.parametrize(("source", "out"), [("raw", "out"), ("raw", "raw.pc"), ("raw/list.csv", "raw/out")])
def test_output_beside_the_source_is_fine(tmp_path: Path, source: str, out: str) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "list.csv").write_text("path\n")
    check_apart(tmp_path / source, tmp_path / out)


def test_a_compiled_dataset_is_no_source(compiled_photos: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="this is a compiled dataset, expected a folder or table of raw files"):
        check_apart(compiled_photos, tmp_path / "out")


def test_a_new_or_empty_output_is_prepared(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "a/b/new"):
        dirs = prepare(tmp_path / name, "flat")
        assert dirs.shards.is_dir()
        assert dirs.generations.is_dir()


def test_an_output_of_an_earlier_build_is_accepted(tmp_path: Path) -> None:
    with locked(prepare(tmp_path / "out", "flat")):
        pass
    prepare(tmp_path / "out", "flat")


@pytest.mark.parametrize("content", ["file", ".hidden", "manifest.json", "shards/file"])
def test_a_foreign_directory_is_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / "out" / content).parent.mkdir(parents=True)
    (tmp_path / "out" / content).write_text("mine")
    with unchanged(tmp_path), pytest.raises(ForeignDirectoryError, match="a directory that precompile did not make"):
        prepare(tmp_path / "out", "flat")


def test_a_file_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with unchanged(tmp_path), pytest.raises(ForeignDirectoryError, match="OUT is a file, expected a directory"):
        prepare(tmp_path / "out", "flat")


def test_store_tmpfs_needs_a_tmpfs(tmp_path: Path) -> None:
    if machine.is_tmpfs(tmp_path):
        pytest.skip("the temporary directory is a tmpfs itself")
    with pytest.raises(RecipeError, match=r"store=tmpfs needs OUT on a tmpfs such as /dev/shm, found .*; choose"):
        prepare(tmp_path / "out", "tmpfs")
    assert not (tmp_path / "out").exists()


def test_room_is_refused_with_need_and_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda path: 500_000_000)
    monkeypatch.setattr(machine, "is_tmpfs", lambda path: False)
    dirs = prepare(tmp_path / "out", "flat")
    check_room(dirs, 100_000_000)
    with pytest.raises(NoRoomError, match=r"needs about 634 MB, the .* has 500 MB free; nothing was written"):
        check_room(dirs, 600_000_000)


def test_a_tmpfs_also_needs_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda path: 10**15)
    monkeypatch.setattr(machine, "is_tmpfs", lambda path: True)
    dirs = prepare(tmp_path / "out", "flat")
    available = machine.memory().available_bytes
    with pytest.raises(NoRoomError, match=r"the memory of this container \(a tmpfs lives in it\)"):
        check_room(dirs, 2 * available)


def test_no_dataset_is_no_manifest(tmp_path: Path) -> None:
    assert current_manifest(tmp_path / "none") is None
    assert current_manifest(BuildDirs(tmp_path).root) is None
