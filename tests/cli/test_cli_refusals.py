"""`precompile build` and its neighbours refuse what is wrong in one line, and lose nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builds import MAIN, REPOSITORY, Outcome, assert_matches, build, cli, quarantine, save_image, snapshot, unchanged

import precompile
from precompile import machine
from precompile.pipeline import compile_plan
from precompile.pipeline.lock import locked
from precompile.pipeline.output import prepare


def make_missing(home: Path) -> tuple[Path, Path, str]:
    return home / "none", home / "new", r"none: no such file or folder"


def make_empty(home: Path) -> tuple[Path, Path, str]:
    (home / "raw").mkdir()
    return home / "raw", home / "new", "raw: the folder is empty, expected image or audio files"


def make_without_known_files(home: Path) -> tuple[Path, Path, str]:
    (home / "raw").mkdir()
    (home / "raw" / "a.doc").write_text("")
    return home / "raw", home / "new", r"no image or audio file found, only 1 \.doc; known suffixes are .*\.jpg"


def make_empty_image_folder(home: Path) -> tuple[Path, Path, str]:
    (home / "raw" / "c0").mkdir(parents=True)
    return home / "raw", home / "new", "raw: the folder is empty, expected image or audio files"


def make_same(home: Path) -> tuple[Path, Path, str]:
    save_image(home / "raw" / "c" / "a.png")
    return home / "raw", home / "raw", r"SOURCE and OUT are the same directory; choose another OUT"


def make_inside(home: Path) -> tuple[Path, Path, str]:
    save_image(home / "raw" / "c" / "a.png")
    return home / "raw", home / "raw" / "out", r"OUT lies inside SOURCE .*; choose another OUT"


def make_around(home: Path) -> tuple[Path, Path, str]:
    save_image(home / "new" / "raw" / "c" / "a.png")
    return home / "new" / "raw", home / "new", r"SOURCE lies inside OUT .*; choose another OUT"


def make_out_file(home: Path) -> tuple[Path, Path, str]:
    save_image(home / "raw" / "c" / "a.png")
    (home / "new").write_text("mine")
    return home / "raw", home / "new", r"new: OUT is a file, expected a directory or a new name; nothing was changed"


def make_out_foreign(home: Path) -> tuple[Path, Path, str]:
    save_image(home / "raw" / "c" / "a.png")
    (home / "new").mkdir()
    (home / "new" / "thesis.tex").write_text("mine")
    return (
        home / "raw",
        home / "new",
        r"new: OUT is a directory that precompile did not make, expected an empty or a? ?new",
    )


def make_out_below_file(home: Path) -> tuple[Path, Path, str]:
    save_image(home / "raw" / "c" / "a.png")
    (home / "file").write_text("mine")
    return home / "raw", home / "file" / "new", r"cannot create .*/file/new: Not a directory"


def make_compiled(home: Path) -> tuple[Path, Path, str]:
    save_image(home / "raw" / "c" / "a.png")
    precompile.build(home / "raw", home / "compiled", workers=1, quiet=True)
    return (
        home / "compiled",
        home / "new",
        r"compiled: this is a compiled dataset, expected a folder or table of raw files",
    )


def make_mixed(home: Path) -> tuple[Path, Path, str]:
    save_image(home / "raw" / "c" / "a.png")
    (home / "raw" / "c" / "a.wav").write_bytes(b"RIFF")
    return home / "raw", home / "new", r"1 image files .* and 1 audio files .*; choose --source image_folder or"


def make_half_splits(home: Path) -> tuple[Path, Path, str]:
    save_image(home / "raw" / "train" / "a.png")
    save_image(home / "raw" / "cats" / "a.png")
    return (
        home / "raw",
        home / "new",
        r"'train' look like splits, 'cats' do not; --set splits=none takes all as classes",
    )


def make_newer(home: Path) -> tuple[Path, Path, str]:
    save_image(home / "raw" / "c" / "a.png")
    precompile.build(home / "raw", home / "old", workers=1, quiet=True)
    manifest = json.loads((home / "old" / "manifest.json").read_text())
    (home / "old" / "manifest.json").write_text(json.dumps({**manifest, "format_version": 7}))
    return home / "raw", home / "old", r"format_version 7 is newer than 1, .*; upgrade precompile"


def make_damaged(home: Path) -> tuple[Path, Path, str]:
    save_image(home / "raw" / "c" / "a.png")
    precompile.build(home / "raw", home / "old", workers=1, quiet=True)
    for path in (home / "old").rglob("manifest.json"):
        path.write_text("{")
    return (
        home / "raw",
        home / "old",
        r"manifest\.json: not valid JSON .*; no generation in .* can be read either: choose another OUT",
    )


def make_all_broken(home: Path) -> tuple[Path, Path, str]:
    (home / "raw" / "c").mkdir(parents=True)
    (home / "raw" / "c" / "a.jpg").write_text("text")
    return (
        home / "raw",
        home / "new",
        r"all 1 inputs failed, nothing was committed; the first: c/a\.jpg: decode: not an image",
    )


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (make_missing, 1), (make_empty, 1), (make_without_known_files, 1), (make_empty_image_folder, 1),
        (make_same, 2), (make_inside, 2), (make_around, 2), (make_out_file, 1), (make_out_foreign, 1),
        (make_out_below_file, 1), (make_compiled, 2), (make_mixed, 2), (make_half_splits, 2), (make_newer, 1),
        (make_damaged, 1), (make_all_broken, 1),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(tmp_path: Path, make: Callable[[Path], tuple[Path, Path, str]], code: int) -> None:
    source, out, message = make(tmp_path)
    with unchanged(tmp_path):
        refused = cli("build", source, out, "--quiet", "--workers", 1)
    assert refused.code == code
    assert_matches(message, refused.error)


@pytest.mark.parametrize("content", [b"", b"just text\n", b"\xff\xd8\xff\xe0\0\x10JFIF\0"])
def test_bad_content_is_quarantined(raw: Path, out: Path, content: bytes) -> None:
    (raw / "c1" / "bad.jpg").write_bytes(content)
    done = build(raw, out)
    assert done.code == 3
    rows = quarantine(out)
    assert list(rows) == ["c1/bad.jpg"]
    assert rows["c1/bad.jpg"]["stage"] == ("decode" if content else "read")
    assert rows["c1/bad.jpg"]["message"] in done.err
    assert "Traceback" not in done.err


def test_log_file_in_no_directory(raw: Path, out: Path, tmp_path: Path) -> None:
    refused = build(raw, out, "--quiet", "--log-file", tmp_path / "none" / "log")
    assert (refused.code, refused.error) == (
        1, f"error: cannot write the log file {tmp_path / 'none' / 'log'}: No such file or directory; choose another",
    )  # fmt: skip


def test_store_tmpfs_elsewhere(raw: Path, out: Path) -> None:
    if machine.is_tmpfs(raw):
        pytest.skip("the temporary directory is a tmpfs itself")
    refused = build(raw, out, "--store", "tmpfs")
    assert refused.code == 2
    assert_matches(
        r"out: store=tmpfs needs OUT on a tmpfs such as /dev/shm, found .*; choose another OUT", refused.error
    )
    assert not out.exists()


def test_another_build_holds_the_output(raw: Path, out: Path) -> None:
    with locked(prepare(out, "lmdb")), unchanged(out):
        refused = build(raw, out)
    assert refused.code == 75
    assert f"another build (pid {os.getpid()} on " in refused.error
    assert build(raw, out).code == 0


DROP_PRIVILEGE = (
    "import ctypes, os, sys\n"
    "libc = ctypes.CDLL(None)\n"
    "[libc.prctl(24, capability, 0, 0, 0) for capability in (1, 2)]\n"
    "os.execv(sys.executable, [sys.executable, '-c', *sys.argv[1:]])\n"
)
"""Root without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH reads only what the mode of a file lets it read."""


def test_an_unreadable_file_fails_the_build(raw: Path, out: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("dropping root's privilege to read everything is done by Linux capabilities")
    (raw / "c0" / "00.png").chmod(0)
    done = subprocess.run(
        [sys.executable, "-c", DROP_PRIVILEGE, MAIN, "build", str(raw), str(out), "--quiet", "--workers", "1"],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    refused = Outcome(done.returncode, done.stdout, done.stderr)
    assert refused.code == 1
    assert_matches(r"cannot read .*/c0/00\.png: Permission denied; give the building user access", refused.error)
    assert not (out / "manifest.json").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount a tmpfs ({mounted.stderr.strip()})")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_no_room_is_refused_with_need_and_have(raw: Path, small_disk: Path) -> None:
    out = small_disk / "out"
    refused = build(raw, out, "--quiet")
    assert refused.code == 1
    assert_matches(
        r"needs about \d+ MB, the tmpfs of .*/out has 1 MB free; nothing was written\. Free some", refused.error
    )
    assert not (out / "manifest.json").exists()
    assert list((out / "shards").iterdir()) == []


@pytest.mark.parametrize("store", ["lmdb", "flat"])
def test_a_disk_that_fills_up_fails_the_build_and_keeps_what_is_there(
    tmp_path: Path, small_disk: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        save_image(tmp_path / "raw" / "c" / f"{number:02d}.png", number, side=128)
    out = small_disk / "out"
    monkeypatch.setattr(compile_plan, "check_room", lambda *_: None)
    arguments = ("--store", store, "--quiet", "--shard-size", 200_000, "--order", "source")
    assert build(tmp_path / "raw", out, *arguments, "--size", 16).code == 0
    with unchanged(out / "shards", out / "manifest.json", out / "generations"):
        refused = build(tmp_path / "raw", out, *arguments)
    assert refused.code == 1
    assert_matches(
        r"cannot write .*: No space left on device; free some space, then run the same command", refused.error
    )
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert build(tmp_path / "raw", out, *arguments).code == 0
    assert cli("verify", out, "--full", "--against-source", "all").code == 0


@pytest.fixture
def compiled(raw: Path, out: Path) -> Path:
    assert build(raw, out, "--quiet", "--shard-size", 800, "--store", "flat").code == 0
    return out


def damage_truncated(out: Path) -> str:
    shard = sorted((out / "shards").iterdir())[0]
    shard.write_bytes(shard.read_bytes()[:100])
    return rf"{shard.name}: .*expected \d+ bytes, found 100"


def damage_missing(out: Path) -> str:
    shard = sorted((out / "shards").iterdir())[0]
    shard.unlink()
    return rf"{shard.name}: the (shard|file) is missing"


def damage_index(out: Path) -> str:
    (out / "generations" / "000001" / "record.npy").write_bytes(b"junk")
    return r"record\.npy: .*(not an \.npy file|expected \d+ bytes, found 4)"


def damage_manifest(out: Path) -> str:
    (out / "manifest.json").write_text("[]")
    return r"manifest\.json: expected a precompile manifest with format_version, found none"


def damage_newer(out: Path) -> str:
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**manifest, "format_version": 2}))
    return r"manifest\.json: format_version 2 is newer than 1"


@pytest.mark.parametrize("damage", [damage_truncated, damage_missing, damage_index, damage_manifest, damage_newer])
def test_a_damaged_dataset_is_refused_by_name(compiled: Path, damage: Callable[[Path], str]) -> None:
    message = damage(compiled)
    before = snapshot(compiled)
    with pytest.raises(precompile.PrecompileError, match=message):
        precompile.CompiledDataset(compiled)
    verified = cli("verify", compiled)
    assert verified.code == 1
    assert_matches(message, verified.err)
    assert all(line.startswith("error: ") for line in verified.err.splitlines())
    if damage in (damage_manifest, damage_newer):
        assert_matches(message, cli("info", compiled).error)
    assert snapshot(compiled) == before


def test_info(compiled: Path) -> None:
    facts: dict[str, Any] = cli("info", compiled, "--json").json
    assert (facts["count"], facts["splits"], facts["classes"]) == (12, {"all": 12}, ["c0", "c1"])
    assert facts["fingerprint"] == precompile.CompiledDataset(compiled).fingerprint
    assert facts["quarantined"] == []
    text = cli("info", compiled).out
    assert "image uint8 (3, 8, 8)" in text
    listed = cli("info", compiled, "--generations", "--json").json
    assert [(row["generation"], row["current"], row["count"]) for row in listed] == [(1, True, 12)]


def test_info_of_no_dataset(tmp_path: Path) -> None:
    assert_matches("none: no such directory; run `precompile build", cli("info", tmp_path / "none").error)
    assert_matches(r"no compiled dataset here \(no manifest", cli("info", tmp_path).error)
