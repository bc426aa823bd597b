"""`precompile cache add|ls|drop`: what they say and change."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builds import MAIN, REPOSITORY, Outcome, assert_matches, cli, unchanged
from written import write

from precompile import CompiledDataset
from precompile.cli import cache as cache_command
from precompile.errors import RecipeError
from precompile.format.schema import FieldSpec
from precompile.loading.caching.directory import CacheDirectory
from precompile.loading.caching.locks import try_lock
from precompile.loading.caching.room import Room

FIELDS = (FieldSpec("image", "uint8", (3, 8, 8)), FieldSpec("mask", "uint8", (8, 8)), FieldSpec("label", "int64", ()))
Run = Callable[..., Outcome]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "x.pc", FIELDS, 20, splits={"train": 12, "val": 8}, num_shards=2)
    return tmp_path / "x.pc"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(home: Path) -> Run:
    """cache("ls"): `precompile cache ls --directory …`"""
    return lambda *arguments: cli("cache", *arguments, "--directory", home)


def names(home: Path) -> list[str]:
    return CacheDirectory(home).entries()


def test_add(root: Path, home: Path, cache: Run) -> None:
    done = cache("add", root)
    [name] = names(home)
    assert (done.code, done.err) == (0, "")
    assert_matches(rf"^{root}: staged \d+\.\d kB in \d+\.\d s: {home / name}\n$", done.out)
    again = cache("add", root)
    assert_matches(rf"^{root}: \d+\.\d kB were there already: {home / name}\n$", again.out)
    assert CompiledDataset(root, split="val", cache=home).stored.root == home / name


def test_add_json(root: Path, home: Path, cache: Run) -> None:
    found = cache("add", root, "--split", "val", "--fields", "label, image", "--json").json
    [name] = names(home)
    assert (found["name"], found["path"], found["staged"]) == (name, str(home / name), True)
    assert (found["root"], found["generation"], found["split"], found["fields"]) == (str(root), 1, "val", ["image"])
    assert (found["pid"], found["uid"]) == (os.getpid(), os.geteuid())
    assert found["num_bytes"] > 8 * 192
    assert cache("add", root, "--split", "val", "--fields", "image", "--json").json["staged"] is False


def test_add_an_older_generation(root: Path, home: Path, cache: Run) -> None:
    write(root, FIELDS, 5, seed=2, generation=2)
    assert cache("add", root, "--generation", 1, "--json").json["generation"] == 1
    assert cache("add", root, "--json").json["generation"] == 2
    assert_matches("no generation 3; there are: 1, 2", cache("add", root, "--generation", 3).error)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--split", "test"), 2, "split must be one of train, val, got 'test'"),
        (("--fields", "pixels"), 2, "no field 'pixels'; choose from image, mask, label"),
        (("--fields", "label"), 2, "columns alone need no cache.*; choose from image, mask"),
        (("--reserve", "much"), 2, "--reserve must be a size such as 8GB, 500MB or 4GiB, got 'much'"),
        (("--reserve", "8QB"), 2, "--reserve must be a size such as 8GB"),
        (("--reserve", "-1"), 2, "--reserve must be a size such as 8GB"),
        (("--reserve", "8"), 2, "--reserve must have a unit, such as 8GB or 8MiB, got '8'"),
    ],
)
def test_add_with_wrong_options(root: Path, home: Path, cache: Run, arguments: Any, code: int, message: str) -> None:
    refused = cache("add", root, *arguments)
    assert refused.code == code
    assert_matches(message, refused.error)
    assert not home.exists()


def test_an_empty_directory_is_not_the_current_folder(root: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path / "empty")
    for arguments in (("add", root), ("ls",), ("drop", "--all")):
        refused = cli("cache", *arguments, "--directory", "")
        assert (refused.code, refused.error) == (2, "error: --directory: directory must be a path, got ''")
    assert list(Path().iterdir()) == []


def test_what_is_no_ram_disk_is_told(home: Path, cache: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, lines in (("ext4", 3), ("tmpfs", 2)):
        monkeypatch.setattr("precompile.machine.filesystem", lambda *_, kind=kind, **__: kind)
        shown = cache("ls").out.splitlines()
        assert len(shown) == lines
        assert (f"{home}: is on ext4, not on a RAM disk" in shown[-1]) == (kind == "ext4")


def test_what_was_dropped_and_is_left_is_listed(home: Path, cache: Run) -> None:
    CacheDirectory(home)
    (home / ".x.pc-0123456789ab..77-0.gone").mkdir()
    assert_matches(r"^\.x\.pc-0123456789ab\.\.77-0\.gone  \d\.\d kB  dropped\n", cache("ls").out)


def test_add_refusals(root: Path, home: Path, cache: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with unchanged(root):
        assert_matches("none: no such directory; run `precompile build", cache("add", tmp_path / "none").error)
        home.symlink_to(tmp_path)
        assert_matches("found a link", cache("add", root).error)
        home.unlink()
        monkeypatch.setattr("precompile.loading.caching.room.room", lambda *_: Room(1 << 10, None, 0))
        refused = cache("add", root)
        assert refused.code == 1
        assert_matches(r"need \d\d\.\d kB, have 1\.0 kB \(1\.0 kB free there; ", refused.error)


def test_sizes_and_ages() -> None:
    sizes = {
        "0": 0,
        "8Gi": 8 << 30,
        "2 mi": 2 << 20,
        "8000000": 8_000_000,
        "8GB": 8 * 10**9,
        "8 gb": 8 * 10**9,
        "1.5MB": 1_500_000,
        "4GiB": 4 << 30,
        "2kib": 2048,
    }
    assert {text: cache_command._bytes(text) for text in sizes} == sizes
    ages = {"30m": 1800, "12h": 43200, "2d": 172800, "1.5d": 129600, "1w": 604800, "0s": 0}
    assert {text: cache_command._seconds(text) for text in ages} == ages
    for wrong in ("2", "d", "-1d", "1y", "1d2h", ""):
        with pytest.raises(RecipeError, match="--older-than must be an age such as 2d, 12h or 30m"):
            cache_command._seconds(wrong)
    assert [cache_command._age(seconds) for seconds in (-3, 61, 150, 9000, 200_000)] == [
        "0 s", "61 s", "2 m", "2 h", "2 d"]  # fmt: skip


def test_ls_of_nothing(home: Path, cache: Run) -> None:
    done = cache("ls")
    assert done.code == 0
    assert_matches(rf"^{home}: nothing is staged\nroom: [\d,.]+ [MG]B \(", done.out)
    assert not home.exists()
    assert cache("ls", "--json").json["entries"] == []


def test_ls(root: Path, home: Path, cache: Run) -> None:
    cache("add", root, "--split", "val", "--fields", "image")
    [name] = names(home)
    dataset = CompiledDataset(root, split="val", fields="image", cache=home)
    line, room, *warning = cache("ls").out.splitlines()
    pattern = (
        rf"^{name}  \d+\.\d kB  current  {root} generation 1 \(split val, fields image\)  staged \d s ago "
        rf"by pid {os.getpid()} on \S+, used \d s ago  in use by pid {os.getpid()}$"
    )
    assert_matches(pattern, line)
    assert_matches(r"^room: [\d,.]+ [MG]B \([\d,.]+ [MG]B free there", room)
    assert warning == [] or warning[0].startswith(f"{home}: is on ")
    [entry] = cache("ls", "--json").json["entries"]
    assert (entry["users"], entry["is_in_use"], entry["state"]) == ([os.getpid()], True, "current")
    assert entry["facts"]["root"] == str(root)
    assert 0 <= time.time() - entry["used_at"] < 3600
    assert set(cache("ls", "--json").json["room"]) == {"free_bytes", "memory_bytes", "reserve_bytes", "have_bytes"}
    del dataset
    assert cache("ls").out.splitlines()[0].endswith("  not in use")


def test_ls_names_each_state(root: Path, home: Path, cache: Run, tmp_path: Path) -> None:
    gone = tmp_path / "gone.pc"
    write(gone, FIELDS, 5)
    write(tmp_path / "bad.pc", FIELDS, 5)
    for out in (root, gone, tmp_path / "bad.pc"):
        cache("add", out)
    shutil.rmtree(gone)
    write(root, FIELDS, 5, seed=2, generation=2)
    bad = next(home.glob("bad.pc-*[0-9a-f]"))
    (bad / "entry.json").write_text("{")
    for name in ("half.pc-0123456789ab", "busy.pc-0123456789ab"):
        (home / f".{name}.half").mkdir()
    lock = try_lock(home / "busy.pc-0123456789ab.lock")
    assert lock is not None
    lock.note("copies", 5_000_000, 20_000_000)
    states = {entry["name"].split(".pc")[0]: entry["state"] for entry in cache("ls", "--json").json["entries"]}
    assert states == {
        "x": "stale",
        "gone": "source gone",
        "bad": "damaged",
        "half": "half-made",
        "busy": "being staged",
    }
    text = cache("ls").out
    assert_matches(r"(?m)^half\.pc-0123456789ab  \d\.\d kB  half-made$", text)
    assert_matches(
        rf"(?m)^busy\.pc-0123456789ab  \d\.\d kB  being staged: pid {os.getpid()} on .* copies, 5\.0 of 20\.0 MB\)$",
        text,
    )
    lock.release()


def test_drop_needs_to_know_what(root: Path, home: Path, cache: Run) -> None:
    cache("add", root)
    refused = cache("drop")
    assert refused.code == 2
    assert refused.error == ("error: drop needs NAME or OUT (see `precompile cache ls`), --older-than AGE, or --all")
    refused = cache("drop", "y.pc")
    assert refused.code == 2
    assert_matches(f"is a copy of, 'y.pc'; choose from {names(home)[0]}", refused.error)
    assert cache("drop", "--older-than", "soon").code == 2
    assert len(names(home)) == 1


def test_drop_by_name_and_by_dataset(root: Path, home: Path, cache: Run, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    write(tmp_path / "y.pc", FIELDS, 5)
    monkeypatch.chdir(tmp_path)
    for arguments in ((root, "--split", "val"), (root, "--split", "train"), ("y.pc",)):
        cache("add", *arguments)
    name = next(home.glob("y.pc-*[0-9a-f]")).name
    with unchanged(root, tmp_path / "y.pc"):
        assert_matches(rf"^{name}: dropped, \d+\.\d kB freed\n$", cache("drop", name).out)
        assert len(names(home)) == 2
        done = cache("drop", "x.pc", "--json").json
    assert [item["stays"] for item in done["dropped"]] == ["", ""]
    assert all(item["freed_bytes"] > 0 for item in done["dropped"])
    assert sorted(path.name for path in home.iterdir()) == [".lock", ".precompile-cache"]


def test_drop_of_nothing(home: Path, cache: Run) -> None:
    for arguments in (("--all",), ("x",), ("--older-than", "1d")):
        done = cache("drop", *arguments)
        assert (done.code, done.out) == (0, f"{home}: nothing is staged\n")
    assert cache("drop", "--all", "--json").json == {"dropped": [], "swept": 0}
    assert not home.exists()


def test_what_is_in_use_stays(root: Path, home: Path, cache: Run) -> None:
    dataset = CompiledDataset(root, cache=home)
    [name] = names(home)
    done = cache("drop", "--all")
    assert (done.code, done.out) == (0, f"{name}: stays: in use by pid {os.getpid()}\n")
    assert names(home) == [name]
    forced = cache("drop", "--all", "--force")
    assert_matches(rf"^{name}: dropped, \d+\.\d kB freed, as soon as pid {os.getpid()} closes it\n$", forced.out)
    assert names(home) == []
    assert len([dataset[number] for number in range(20)]) == 20


def test_what_is_being_staged_stays(root: Path, home: Path, cache: Run) -> None:
    cache("add", root)
    [name] = names(home)
    lock = try_lock(home / f"{name}.lock")
    assert lock is not None
    assert_matches(rf"^{name}: stays: its lock is held by pid {os.getpid()} on ", cache("drop", "--all").out)
    lock.release()
    assert cache("drop", "--all", "--json").json["dropped"][0]["stays"] == ""


def test_drop_by_age_counts_from_the_last_use(root: Path, home: Path, cache: Run) -> None:
    cache("add", root, "--split", "val")
    cache("add", root, "--split", "train")
    old, young = (home / name for name in names(home))
    os.utime(old / "used", (time.time() - 3 * 86400,) * 2)
    os.utime(young / "used", (time.time() - 86400,) * 2)
    assert cache("drop", "--older-than", "5d").out == f"{home}: nothing of that age\n"
    assert cache("drop", young.name, "--older-than", "2d").out == f"{home}: nothing of that age\n"
    assert_matches(rf"^{old.name}: dropped", cache("drop", "--older-than", "2d").out)
    assert names(home) == [young.name]


def test_drop_all_sweeps_what_is_half_made(home: Path, cache: Run) -> None:
    CacheDirectory(home)
    (home / ".x.pc-0123456789ab.half").mkdir()
    (home / ".x.pc-0123456789ab..77-0.gone").mkdir()
    assert cache("drop", "--all").out == "1 half-made removed\n"
    assert [path.name for path in home.iterdir()] == [".precompile-cache"]


def test_a_damaged_entry_can_be_dropped(root: Path, home: Path, cache: Run) -> None:
    cache("add", root)
    [name] = names(home)
    (home / name / "entry.json").write_text(json.dumps({"root": "\x1b[31m"}))
    assert_matches(rf"^{name}  \d+\.\d kB  damaged\n", cache("ls").out)
    assert_matches(rf"^{name}: dropped", cache("drop", name).out)


def test_a_root_that_would_write_to_the_terminal(root: Path, home: Path, cache: Run) -> None:
    cache("add", root)
    path = home / names(home)[0] / "entry.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "root": "/x\x1b[31m\n", "host": "\udcff\n"}))
    done = cache("ls")
    assert "\\x1b[31m\\n" in done.out
    assert len(done.out.splitlines()) <= 3


def test_progress_is_for_terminals(root: Path, home: Path, cache: Run) -> None:
    assert cache("add", root).err == ""
    for quiet in (True, False):
        cache("drop", "--all")
        parent, child = pty.openpty()
        termios.tcsetwinsize(child, (24, 100))
        command = [
            sys.executable,
            "-c",
            MAIN,
            "cache",
            "add",
            root,
            "--directory",
            home,
            *(["--quiet"] if quiet else []),
        ]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(
            list(map(str, command)), stderr=child, stdout=subprocess.PIPE, text=True, timeout=60, env=environment
        )
        os.write(child, b"the end")
        shown = b""
        while b"the end" not in shown:
            shown += os.read(parent, 1 << 16)
        os.close(child)
        os.close(parent)
        assert done.returncode == 0
        assert (b"staging" in shown) == (not quiet)
        assert "staged" in done.stdout


def test_help_and_home(cache: Run) -> None:
    assert "cache" in cli("--help").out
    shown = cli("cache", "add", "--help").out
    assert f"/dev/shm/precompile-{os.geteuid()}" in " ".join(shown.split())
