"""What a hostile world found: each was a hang, a traceback, rubbish left behind, or wrong data unnoticed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from builds import cli

import precompile
from precompile.errors import FormatError, StorageError
from precompile.format.generation import generation_dir
from precompile.pipeline.against_source import compare_with_source
from precompile.pipeline.executors import local
from precompile.pipeline.output import prepare
from precompile.pipeline.plan import Plan
from precompile.pipeline.quarantine import read_quarantine
from precompile.pipeline.verify import verify


@pytest.fixture
def raw(tmp_path: Path, make_photos) -> Path:
    return make_photos(tmp_path / "raw", count=6)


@pytest.fixture
def out(tmp_path: Path, raw: Path) -> Path:
    precompile.build(raw, tmp_path / "out", size=16, crop=16, quiet=True, workers=1)
    return tmp_path / "out"


def again(raw: Path, out: Path, **options):
    return precompile.build(raw, out, size=16, crop=16, quiet=True, workers=1, **options)


def files_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.skipif(not Path("/proc/kmsg").exists() or os.geteuid() != 0, reason="needs root to read /proc/kmsg")
def test_a_file_whose_reading_hangs_is_quarantined(tmp_path, raw):
    (raw / "train" / "class0" / "endless.jpg").symlink_to("/proc/kmsg")
    summary = precompile.build(raw, tmp_path / "out", quiet=True, workers=1, timeout_seconds=2)
    assert (summary.compiled, summary.quarantined) == (6, 1)
    assert "not finished after 2 s" in str(summary.failures[0])


def test_a_worker_that_is_stopped_between_samples_is_replaced(tmp_path, raw, monkeypatch):
    monkeypatch.setattr(local, "_SILENT_SECONDS", 8.0)
    start = local.WorkerProcess.__init__
    stopped: list[int] = []

    def start_and_stop(self, *arguments):
        start(self, *arguments)
        if not stopped:
            stopped.append(self.pid)
            os.kill(self.pid, signal.SIGSTOP)

    monkeypatch.setattr(local.WorkerProcess, "__init__", start_and_stop)
    monkeypatch.setattr(local.LocalExecutor, "probe", lambda *_: local.Probed((), (), 0.0))
    summary = precompile.build(raw, tmp_path / "out", quiet=True, workers=1, timeout_seconds=1)
    assert (summary.compiled, summary.quarantined) == (6, 0)
    assert not Path(f"/proc/{stopped[0]}").exists()


def test_a_source_that_changes_while_it_is_compiled_fails_the_build(tmp_path, raw, monkeypatch):
    picture = next(raw.rglob("*.jpg"))
    save = Plan.save

    def save_and_change(self, directory):
        save(self, directory)
        picture.write_bytes(picture.read_bytes() + b"\0")

    monkeypatch.setattr(Plan, "save", save_and_change)
    with pytest.raises(StorageError, match=rf"{picture.name}: changed since it was listed"):
        precompile.build(raw, tmp_path / "out", quiet=True, workers=1)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("damage", ["generation", "index file"])
def test_building_again_mends_a_lost_index(raw, out, damage):
    if damage == "generation":
        shutil.rmtree(generation_dir(out, 1))
    else:
        os.truncate(generation_dir(out, 1) / "record.npy", 10)
    assert again(raw, out).compiled == 6
    assert verify(out, full=True) == []
    assert compare_with_source(out, count=None) == ([], 6)


def test_building_again_restores_a_damaged_manifest(raw, out):
    text = (out / "manifest.json").read_bytes()
    (out / "manifest.json").write_text("{")
    assert again(raw, out).reused == 6
    assert (out / "manifest.json").read_bytes() == text
    for path in out.rglob("manifest.json"):
        path.write_text("{")
    with pytest.raises(
        FormatError, match=r"not valid JSON.*no generation in .* can be read either: choose another OUT"
    ):
        again(raw, out)


@pytest.mark.parametrize("text", ["{\n", '{"a": 1}\n', "\u00e9"])
def test_a_damaged_quarantine_file_is_one_line_and_no_hindrance(raw, out, text):
    (generation_dir(out, 1) / "quarantine.jsonl").write_bytes(text.encode("latin-1"))
    assert "quarantine.jsonl: damaged quarantine file" in cli("info", out).error
    assert again(raw, out, rebuild=True).compiled == 6


def test_a_damaged_old_generation_does_not_fail_a_commit(raw, out):
    (generation_dir(out, 1) / "manifest.json").write_text("x")
    summary = precompile.build(raw, out, size=8, crop=8, quiet=True, workers=1)
    assert summary.generation == 2
    assert files_in(out / "build") == []


def test_nothing_is_left_by_builds_that_had_nothing_to_do(raw, out):
    (out / ".manifest.json.123.tmp").write_text("left by a kill")
    (out / "build" / "receipts").mkdir()
    before = set(files_in(out)) - {".manifest.json.123.tmp", "build/receipts"}
    assert again(raw, out).reused == 6
    assert set(files_in(out)) == before


@pytest.mark.parametrize("left", [["shards", "generations"], ["shards"], []])
def test_a_build_killed_at_its_very_start_is_taken_up(tmp_path, raw, left):
    prepare(tmp_path / "out", "lmdb")
    for name in {"shards", "generations"} - set(left):
        (tmp_path / "out" / name).rmdir()
    assert again(raw, tmp_path / "out").compiled == 6


@pytest.mark.parametrize("key", ["classes", "fingerprint", "quarantined", "schema"])
def test_verify_notices_a_changed_manifest(out, key):
    manifest = json.loads((out / "manifest.json").read_text())
    changed = {"classes": manifest["classes"][::-1], "fingerprint": "f" * 32, "quarantined": 7}
    changed["schema"] = [{**manifest["schema"][0], "encoding": "raw_hwc"}, *manifest["schema"][1:]]
    text = json.dumps({**manifest, key: changed[key]})
    (out / "manifest.json").write_text(text)
    findings = verify(out)
    assert re.search(r"must equal .*manifest.json", str(findings[0]))
    (generation_dir(out, 1) / "manifest.json").write_text(text)
    assert verify(out, full=True)


def test_rows_that_name_no_file_of_any_kind_go_to_the_quarantine(tmp_path, raw):
    picture = next(raw.rglob("*.jpg")).relative_to(raw)
    rows = [str(picture), f"{picture}/b.jpg", "x" * 300 + ".jpg", "train"]
    (raw / "list.csv").write_text("path,label\n" + "".join(f"{row},1\n" for row in rows))
    out = tmp_path / "out"
    found = cli(
        "build", raw / "list.csv", out, "--set", "missing=quarantine", "--set", "media=image", "--quiet", "--json"
    )
    assert (found.code, found.json["compiled"], found.json["quarantined"]) == (3, 1, 3)
    assert {row.message for row in read_quarantine(generation_dir(out, 1) / "quarantine.jsonl")} == {
        "no such file, or not a file"
    }


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema": ' + "[" * 50_000])
def test_a_manifest_that_is_nested_without_end(out, text):
    (out / "manifest.json").write_text(text)
    assert "manifest.json: not valid JSON" in cli("info", out).error


def test_odd_paths_are_one_line(tmp_path, raw):
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for arguments in (
        (raw, tmp_path / "o", "--recipe", tmp_path / "folder.toml"),
        (tmp_path / "loop", tmp_path / "o"),
        (raw, tmp_path / "loop"),
        (raw, tmp_path / ("x" * 300)),
        (raw, tmp_path / os.fsdecode(b"o\xff.pc")),
    ):
        assert cli("build", *arguments).error
