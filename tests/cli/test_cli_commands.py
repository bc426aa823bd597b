"""`recipes`, `doctor`, `info`, `verify`: what they print, as text and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from builds import cli

import precompile
from precompile.cli import doctor as doctor_command
from precompile.pipeline.recipe import Recipe


def test_recipes_are_listed_shown_and_explained():
    listed = cli("recipes")
    assert listed.code == 0
    assert [line.split()[0] for line in listed.out.splitlines()][:2] == ["celeba", "esc50"]
    assert cli("recipes", "show", "imagenet").out.startswith("description = ")
    assert cli("recipes", "show", "nope").error.startswith("error: no recipe named 'nope'; choose from celeba")
    keys = cli("recipes", "--keys").out.splitlines()
    names = [line.split()[0] for line in keys]
    assert [name for name in names if "." not in name] == list(Recipe.model_fields)
    assert "features.mel.num_mels" in names


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_doctor_exits_1_on_fail_only(monkeypatch, status, code):
    check = doctor_command.doctor.__globals__["Check"]("CPUs", status, "2 usable", "buy more")
    monkeypatch.setattr(doctor_command, "doctor", lambda **_: [check])
    text = cli("doctor")
    assert (text.code, text.out.split()[:2]) == (code, [status, "CPUs"])
    assert ("buy more" in text.out) is (status != "ok")
    assert cli("doctor", "--json").json == {
        "checks": [{"name": "CPUs", "status": status, "value": "2 usable", "advice": "buy more"}]
    }


def test_info_and_its_generations(tmp_path: Path, make_photos):
    raw, out = make_photos(tmp_path / "raw", count=6), tmp_path / "out"
    (raw / "train" / "class0" / "broken.jpg").write_text("no picture")
    precompile.build(raw, out, size=16, crop=16, quiet=True, workers=1)
    make_photos(raw, count=8)
    precompile.build(raw, out, size=16, crop=16, quiet=True, workers=1)
    text = cli("info", out).out
    assert "samples      8 (train 4, val 4)" in text
    assert "fields       image uint8 (3, 16, 16), label int64" in text
    assert "recipe       size=16, crop=16" in text
    assert "  train/class0/broken.jpg: decode: not an image in a format that Pillow can read" in text
    facts = cli("info", out, "--json").json
    assert (facts["generation"], facts["count"], facts["quarantined"][0]["split"]) == (2, 8, "train")
    lines = cli("info", out, "--generations").out.splitlines()
    assert [(line[0], line.split("  ")[0].strip("* ")) for line in lines] == [(" ", ""), ("*", "")]
    numbers = [
        (row["generation"], row["current"], row["count"]) for row in cli("info", out, "--generations", "--json").json
    ]
    assert numbers == [(1, False, 6), (2, True, 8)]


def test_verify_as_text_and_as_json(compiled_photos: Path, tmp_path: Path):
    assert cli("verify", compiled_photos, "--full").out.endswith("all checksums checked: no findings\n")
    facts = cli("verify", compiled_photos, "--against-source", "all", "--json").json
    assert facts == {"ok": True, "findings": [], "repaired": [], "compared": 24}
    assert (
        "--against-source must be a number of at least 1, or all, got '0'"
        in cli("verify", compiled_photos, "--against-source", "0").error
    )
    assert cli("verify", tmp_path / "nothing").error.startswith(f"error: {tmp_path}/nothing: no such directory")


def test_version_and_help():
    assert cli("--version").out == f"precompile, version {precompile.__version__}\n"
    for command in ("build", "info", "verify", "demo", "recipes", "doctor"):
        assert command in cli("--help").out
        assert cli(command, "--help").out.startswith(f"Usage: precompile {command}")
