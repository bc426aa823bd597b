"""What a cache may be given, and which folders it refuses."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builds import unchanged

from precompile import CompiledDataset
from precompile.errors import ForeignDirectoryError, StorageError
from precompile.loading.caching import directory as directory_module
from precompile.loading.caching import staging
from precompile.loading.caching.directory import MARKER, CacheDirectory
from precompile.loading.caching.dropping import drop, sweep
from precompile.loading.caching.entries import list_entries
from precompile.loading.caching.listing import survey
from precompile.loading.caching.locks import read_owner
from precompile.loading.caching.options import Cache, as_cache, default_directory
from precompile.loading.caching.staging import add


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"if_full": "swap"}, "if_full must be one of error, disk, got 'swap'"),
        ({"reserve_bytes": -1}, "reserve_bytes must be None or an integer of at least 0, got -1"),
        ({"reserve_bytes": 1.5}, "reserve_bytes must be None or an integer of at least 0, got 1.5"),
        ({"directory": ""}, "directory must be a path, got ''"),
        ({"directory": "x\0y"}, r"directory must be a path, got 'x\\x00y'"),
        ({"stall_seconds": 0}, "stall_seconds must be a number above 0, got 0"),
        ({"stall_seconds": float("nan")}, "stall_seconds must be a number above 0, got nan"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cache(**options)


def test_what_cache_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_cache(None) is None
    assert as_cache(False) is None
    assert as_cache(True) == Cache()
    assert as_cache(tmp_path) == as_cache(str(tmp_path)) == Cache(directory=tmp_path)
    assert as_cache(Cache(if_full="disk")) == Cache(if_full="disk")
    with pytest.raises(TypeError, match="cache must be True, a directory or a Cache, got 3"):
        as_cache(3)  # type: ignore[arg-type]
    assert Cache().path == default_directory() == Path(f"/dev/shm/precompile-{os.geteuid()}")
    monkeypatch.chdir(tmp_path)
    assert Cache(directory="here").path == tmp_path / "here"


def test_it_is_made_for_its_user_alone(images: Any, home: Path) -> None:
    cached = CompiledDataset(images[0], cache=home)
    for folder in (home, cached.stored.root):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in home.rglob("*") if path.is_file())


def refused(images: Any, home: Path, message: str) -> None:
    with unchanged(home.parent), pytest.raises(ForeignDirectoryError, match=message):
        CompiledDataset(images[0], cache=home)


def test_a_link_is_refused(images: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    home.symlink_to(tmp_path / "elsewhere")
    refused(
        images, home, "cache: expected a folder that precompile made, found a link; choose another, empty directory"
    )
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_dangling_link_is_refused(images: Any, home: Path, tmp_path: Path) -> None:
    home.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ForeignDirectoryError, match="found a link"):
        CompiledDataset(images[0], cache=home)
    assert not (tmp_path / "nowhere").exists()


def test_a_file_is_refused(images: Any, home: Path) -> None:
    home.write_text("mine")
    refused(images, home, "cache: expected a folder that precompile made, found a file")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(images: Any, home: Path, mode: int) -> None:
    CacheDirectory(home)
    home.chmod(mode)
    refused(images, home, rf"others may write there \(mode {mode:04o}\); run `chmod 700 {home}`")


def test_a_folder_of_something_else_is_refused(images: Any, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "thesis.tex").write_text("years of work")
    refused(
        images,
        home,
        "holds 'thesis.tex' and more that precompile did not make; choose another, empty directory .*cache$",
    )


def test_a_folder_of_another_user_is_refused(images: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CacheDirectory(home)
    monkeypatch.setattr(directory_module.os, "geteuid", lambda: home.stat().st_uid + 1)
    refused(images, home, r"expected a folder of user \d+, found one of user \d+")


def test_an_empty_folder_is_taken(images: Any, home: Path) -> None:
    home.mkdir(mode=0o700)
    assert CompiledDataset(images[0], cache=home).stored.root.parent == home


def test_a_folder_that_cannot_be_made(images: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot be a cache: .*; choose another directory"):
        CompiledDataset(images[0], cache=tmp_path / "file" / "cache")


def test_without_fallocate_it_says_so(images: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with pytest.raises(StorageError, match="a cache needs file locks and posix_fallocate, which Linux has"):
        CompiledDataset(images[0], cache=home)


def test_what_others_put_there_later_stays(images: Any, home: Path, tmp_path: Path) -> None:
    entry = CompiledDataset(images[0], cache=home).stored.root
    (home / "notes.txt").write_text("mine")
    (home / "folder").mkdir()
    (home / ".x.half").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("mine")
    (home / "link-0123456789ab").symlink_to(tmp_path / "data")
    (home / ".link-0123456789ab.half").symlink_to(tmp_path / "data")
    (entry / "link").symlink_to(tmp_path / "data")
    place = CacheDirectory(home)
    assert [found.name for found in list_entries(place)] == [entry.name]
    assert sweep(place) == 0
    assert drop(place, entry.name).stays == ""
    assert not entry.exists()
    for name in ("notes.txt", "folder", ".x.half", "link-0123456789ab", ".link-0123456789ab.half"):
        assert os.path.lexists(home / name)
    assert (tmp_path / "data" / "a").read_text() == "mine"


@pytest.mark.timeout(60)
def test_a_marker_that_is_no_file(images: Any, home: Path) -> None:
    CacheDirectory(home)
    (home / MARKER).unlink()
    os.mkfifo(home / MARKER)
    assert CompiledDataset(images[0], cache=home).stored.root.parent == home


def test_a_name_that_something_else_has_already(images: Any, home: Path) -> None:
    entry, _ = add(images[0], Cache(directory=home))
    for number in range(50):
        (home / f".{entry.name}..{os.getpid()}-{number}.gone" / "mine").mkdir(parents=True)
    assert drop(CacheDirectory(home), entry.name).stays == ""
    assert not entry.path.exists()


def test_a_time_in_the_future_is_not_believed(images: Any, home: Path) -> None:
    entry, _ = add(images[0], Cache(directory=home))
    assert entry.facts is not None
    os.utime(entry.path / "used", (time.time() + 1e6,) * 2)
    assert entry.used_at == entry.facts.staged_at
    future = replace(entry, facts=replace(entry.facts, staged_at=time.time() + 1e6))
    assert future.used_at == 0.0


NOTE = {"pid": 7, "host": "h", "since": "s", "stage": "copies", "done_bytes": 1, "total_bytes": 5}


@pytest.mark.parametrize(
    "value",
    [{"pid": -5}, {"pid": 0}, {"pid": True}, {"done_bytes": 10**3000}, {"total_bytes": -1}, {"host": "\x1b[2J"},
     {"since": "\ud800"}, {"stage": "a\nb"}, {"host": None}],
)  # fmt: skip
def test_notes_that_cannot_be_or_would_not_print(tmp_path: Path, value: dict[str, Any]) -> None:
    path = tmp_path / "x.lock"
    path.write_text(json.dumps(NOTE).ljust(1 << 16))
    assert str(read_owner(path)) == "pid 7 on h (since s; copies, 0.0 of 0.0 MB)"
    path.write_text(json.dumps({**NOTE, **value}))
    assert read_owner(path) is None


def test_what_is_no_ram_disk_is_told(
    images: Any, home: Path, small_disk: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(images[0], Cache(directory=small_disk / "cache"))
    assert caplog.text == ""
    monkeypatch.setattr(staging.machine, "filesystem", lambda *_, **__: "ext4")
    for _ in range(2):
        add(images[0], Cache(directory=home))
    assert caplog.text.count(f"{home}: is on ext4, not on a RAM disk") == 1


def test_all_processes_are_looked_at_once(images: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = [CompiledDataset(images[0], split=split, cache=home) for split in ("train", "val")]
    looks, listdir = [], os.listdir
    monkeypatch.setattr(os, "listdir", lambda path=".": (looks.append(path), listdir(path))[1])
    assert [listed.users for listed in survey(CacheDirectory(home))] == [(os.getpid(),)] * len(opened)
    assert looks.count("/proc") == 1
