"""`precompile build`: exit codes, what it prints, and how it refuses."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from builds import assert_matches, build, cli, save_image, unchanged

import precompile
from precompile import machine

KEYS = ["planned", "compiled", "reused", "quarantined", "left_out", "seconds", "generation", "fingerprint", "bytes",
        "new_failures", "exit_code", "finished_at"]  # fmt: skip


def test_done(raw: Path, out: Path) -> None:
    done = build(raw, out)
    assert done.code == 0
    assert f"{out}: generation 1, 12 planned = 12 compiled + 0 reused + 0 quarantined; 0 left out\n" in done.out
    assert precompile.CompiledDataset(out).fingerprint in done.out
    assert done.err == "compiling 12 inputs into 1 shard with 1 worker process\n"


def test_quiet(raw: Path, out: Path) -> None:
    assert build(raw, out, "--quiet").err == ""


def test_json_keys(raw: Path, out: Path) -> None:
    (raw / "c0" / "broken.png").write_bytes(b"")
    (raw / "c0" / "notes.txt").write_text("")
    done = build(raw, out, "--json", "--quiet")
    assert (done.code, list(done.json)) == (3, KEYS)
    facts = done.json
    assert [facts[key] for key in KEYS[:5]] == [13, 12, 0, 1, 1]
    assert (facts["generation"], facts["fingerprint"]) == (1, precompile.CompiledDataset(out).fingerprint)
    assert facts["bytes"] == sum(path.stat().st_size for path in (out / "shards").iterdir())
    assert facts["seconds"] > 0
    assert (facts["new_failures"], facts["exit_code"]) == (1, 3)
    again = build(raw, out, "--json", "--quiet")
    assert (again.code, list(again.json)) == (0, KEYS)
    assert [again.json[key] for key in KEYS[:5]] == [13, 0, 12, 1, 1]


@pytest.mark.parametrize(
    ("allowed", "code"), [("0", 3), ("1", 3), ("2", 0), ("5%", 3), ("14%", 3), ("15%", 0), ("100%", 0)]
)
def test_max_failures(raw: Path, out: Path, allowed: str, code: int) -> None:
    """2 of 14 fail: 14.3 %."""
    for name in ("x.png", "y.jpg"):
        (raw / "c0" / name).write_bytes(b"text")
    done = build(raw, out, "--max-failures", allowed)
    assert done.code == code
    assert len(precompile.CompiledDataset(out)) == 12
    assert done.err.count("quarantined: ") == 2
    assert ("2 new failures are more than --max-failures allows" in done.err) == (code == 3)


def test_failures_are_named_up_to_a_limit(raw: Path, out: Path) -> None:
    for number in range(25):
        (raw / "c0" / f"broken{number:02d}.png").write_bytes(b"text")
    done = build(raw, out, "--allow-shrink")
    lines = [line for line in done.err.splitlines() if line.startswith("quarantined: ")]
    assert len(lines) == 20
    assert lines[0] == "quarantined: c0/broken00.png: decode: not an image in a format that Pillow can read"
    assert "… and 5 more" in done.err


def test_dry_run(raw: Path, out: Path) -> None:
    (raw / "c0" / "notes.txt").write_text("")
    (raw / "c0" / "broken.png").write_bytes(b"")
    with unchanged(raw.parent):
        done = build(raw, out, "--dry-run")
        told = build(raw, out, "--dry-run", "--json")
    assert not out.exists()
    assert (done.code, told.code, told.err) == (0, 0, "")
    assert_matches(
        r"^13 of 13 inputs would be compiled; 1 left out\n"
        r"bytes   0\.0 MB \(0\.0 to 0\.1\) in 1 shard, and 0\.0 MB for plan and receipts; [\d,]+ MB are free\n"
        r"time    \d+ s \(\d+ to \d+\), without listing the source\n"
        r"by 13 inputs compiled as a sample, of which 1 failed; nothing was written\n$", done.out,
    )  # fmt: skip
    assert (list(told.json), told.json["planned"]) == ([*KEYS, "forecast"], 13)
    forecast = told.json["forecast"]
    assert {name: forecast[name] for name in ("inputs", "sampled", "failed", "shards")} == {
        "inputs": 13, "sampled": 13, "failed": 1, "shards": 1,
    }  # fmt: skip
    for name in ("bytes", "seconds"):
        assert 0 < forecast[name]["low"] <= forecast[name]["expected"] <= forecast[name]["high"]
    assert forecast["temporary_bytes"] > 0
    assert forecast["free_bytes"] > 0


def test_dry_run_of_what_is_partly_done(raw: Path, out: Path) -> None:
    build(raw, out)
    with unchanged(out):
        done = build(raw, out, "--dry-run")
        assert (done.code, done.out) == (0, "nothing to do: 12 samples are up to date, 0 in quarantine\n")
        assert list(build(raw, out, "--dry-run", "--json").json) == KEYS
    save_image(raw / "c0" / "new.png", 99)
    with unchanged(out):
        told = build(raw, out, "--dry-run", "--json").json
    assert (told["planned"], told["reused"], told["forecast"]["inputs"]) == (13, 12, 1)


def test_options_of_the_recipe(raw: Path, out: Path) -> None:
    done = build(
        raw, out, "--source", "image_folder", "--store", "flat", "--encoding", "bmp", "--size", "4x6", "--fit", "exact",
        "--filter", "box", "--engine", "exact", "--parity", "torchvision", "--order", "source", "--shard-size", 500,
        "--set", "seed=3", "--set", "splits=none", "--set", "classes=c1,c0", "--keep", 1, "--timeout", 5,
    )  # fmt: skip
    assert done.code == 0, done.err
    manifest = json.loads((out / "manifest.json").read_text())
    recipe = manifest["recipe"]
    expected = {
        "source": "image_folder", "store": "flat", "encoding": "bmp", "size": [4, 6], "fit": "exact", "filter": "box",
        "engine": "exact", "parity": "torchvision", "order": "source", "shard_size": 500, "seed": 3, "splits": "none",
        "classes": ["c1", "c0"],
    }  # fmt: skip
    assert {key: recipe[key] for key in expected} == expected
    assert manifest["classes"] == ["c1", "c0"]
    assert precompile.CompiledDataset(out)[0]["image"].shape == (3, 4, 6)


def test_set_reaches_into_tables(clips: Path, out: Path) -> None:
    done = cli("build", clips, out, "--workers", 1, "--set", "features.mel.num_mels=32", "--set", "features.mel.log=db")
    assert done.code == 0, done.err
    recipe = json.loads((out / "manifest.json").read_text())["recipe"]
    assert recipe["features"] == {"mel": {"num_mels": 32, "log": "db"}}
    assert precompile.CompiledDataset(out).schema["spectrogram"].shape[0] == 32


def test_recipe_file_and_options_on_top(raw: Path, out: Path, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('description = "small"\nsize = 4\ncrop = 4\nstore = "flat"\n')
    assert build(raw, out, "--recipe", tmp_path / "r.toml", "--crop", 3).code == 0
    assert precompile.CompiledDataset(out)[0]["image"].shape == (3, 3, 3)


def test_tmpfs(raw: Path) -> None:
    shm = Path("/dev/shm")
    if not (shm.is_dir() and os.access(shm, os.W_OK) and machine.is_tmpfs(shm)):
        pytest.skip("there is no writable tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir=shm) as directory:
        out = Path(directory) / "out"
        assert build(raw, out, "--store", "tmpfs").code == 0
        assert [path.suffix for path in (out / "shards").iterdir()] == [".flat"]
        assert len(precompile.CompiledDataset(out)) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--store", "zip"], r"'--store': 'zip' is not one of 'lmdb', 'flat', 'tmpfs'"),
        (["--encoding", "jpg"], r"'jpg' is not one of 'raw', 'bmp'"),
        (["--crop", "big"], r"'--crop': 'big' is not a valid integer"),
        (["--no-such-option"], r"--no-such-option"),
        (["--size", "big"], r"size: must be N or HxW, got size='big'"),
        (["--size", "0"], r"size: .*at least|greater than or equal to 1, got size="),
        (["--crop", "0"], r"crop: .*greater than or equal to 1, got crop=0"),
        (["--fit", "pad"], r"fit=pad needs size"),
        (["--engine", "magic"], r"no engine named 'magic'; choose from .*exact"),
        (["--engine", "audio"], r"engine must be exact or fast for images, got engine=audio"),
        (["--source", "zip"], r"no source named 'zip'; choose from audio_folder, image_folder, table"),
        (["--dtype", "float32"], r"dtype must be uint8 for images, got dtype=float32"),
        (["--sample-rate", "8000"], r"sample_rate is for audio, but the source holds image files; leave it out"),
        (["--set", "colour=red"], r"unknown recipe key 'colour'; choose from .*\bcrop\b"),
        (["--set", "seed"], r"--set needs KEY=VALUE, got 'seed'"),
        (["--set", "=1"], r"--set needs KEY=VALUE, got '=1'"),
        (["--set", "seed=many"], r"seed: .*integer.*got seed='many'"),
        (["--set", "seed.a=1"], r"seed: .*got seed="),
        (["--set", "a.b=1"], r"unknown recipe key 'a'"),
        (
            ["--set", "splits=train,test"],
            r"no split folder 'test', 'train', got splits=train,test; the folders are 'c0'",
        ),
        (["--set", "classes=c0,c2"], r"class folder 'c1' is not in classes=c0,c2"),
        (["--recipe", "none"], r"no recipe named 'none'; choose from"),
        (["--recipe", "none.toml"], r"none\.toml: no such recipe file"),
        (["--workers", "0"], r"workers must be at least 1, got workers=0"),
        (["--keep", "0"], r"keep must be at least 1, got keep=0"),
        (["--timeout", "0"], r"timeout must be more than 0 seconds"),
        (["--max-failures", "some"], r"max_failures must be N or P%, got max_failures='some'"),
        (["--on-error", "skip"], r"'skip' is not one of 'quarantine', 'stop'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(built: Path, arguments: list[str], message: str) -> None:
    with unchanged(built):
        refused = build(built / "raw", built / "out", *arguments)
    assert refused.code == 2
    assert_matches(message, refused.error)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["build", "--help"]])
def test_help_is_no_error_line(arguments: list[str]) -> None:
    shown = cli(*arguments)
    assert "Usage: precompile" in shown.out + shown.err
    assert "error" not in shown.err


def test_unknown_command() -> None:
    refused = cli("bild")
    assert refused.code == 2
    assert "No such command 'bild'" in refused.error
