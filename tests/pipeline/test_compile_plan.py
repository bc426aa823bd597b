"""What is seen while shards are compiled: mixed sample rates, generations that were never committed."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import soundfile

import precompile
from precompile.errors import RecipeError
from precompile.format.generation import list_generations


def write(path, sample_rate, seconds=0.3):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.random.default_rng(0).uniform(-0.5, 0.5, int(seconds * sample_rate)), sample_rate)


@pytest.mark.parametrize("shard_size", [None, 1], ids=["one shard", "a shard each"])
def test_mixed_sample_rates_are_refused_naming_files(tmp_path, shard_size):
    write(tmp_path / "raw" / "a.wav", 16000)
    write(tmp_path / "raw" / "b.wav", 44100)
    with pytest.raises(
        RecipeError, match=r"several sample rates: 16000 Hz \(a.wav\), 44100 Hz \(b.wav\); .*--sample-rate"
    ):
        precompile.build(tmp_path / "raw", tmp_path / "out", features="waveform", shard_size=shard_size, quiet=True)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_one_rate_needs_no_resampling(tmp_path):
    for name in ("a.wav", "b.wav"):
        write(tmp_path / "raw" / name, 22050)
    precompile.build(tmp_path / "raw", tmp_path / "out", features="waveform", quiet=True, workers=1)
    dataset = precompile.CompiledDataset(tmp_path / "out")
    expected, _ = soundfile.read(tmp_path / "raw" / "b.wav", dtype="float32")
    assert dataset[1]["sample_rate"] == 22050
    np.testing.assert_array_equal(dataset[1]["waveform"].numpy()[0], expected)


def test_what_a_build_left_before_its_commit_is_swept_and_its_number_used_again(tmp_path, make_photos):
    raw, out = make_photos(tmp_path / "raw", count=4), tmp_path / "out"
    precompile.build(raw, out, quiet=True, workers=1)
    shutil.copytree(out / "generations" / "000001", out / "generations" / "000002")
    (out / "generations" / ".000003.123.tmp").mkdir()
    make_photos(raw, count=6)
    summary = precompile.build(raw, out, quiet=True, workers=1)
    assert summary.generation == 2
    assert list_generations(out) == [1, 2]
    assert sorted(path.name for path in (out / "generations").iterdir()) == ["000001", "000002"]
    assert json.loads((out / "generations" / "000002" / "manifest.json").read_text())["count"] == 6


def test_a_build_says_why_it_compiles_again(tmp_path, make_photos, capsys):
    raw, out = make_photos(tmp_path / "raw", count=4), tmp_path / "out"
    precompile.build(raw, out, size=16, crop=16, workers=1)
    assert "compiling everything again" not in capsys.readouterr().err
    precompile.build(raw, out, size=16, workers=1)
    assert "the recipe changed (crop 16 -> None): compiling everything again" in capsys.readouterr().err
    make_photos(raw, count=6)
    dry = precompile.build(raw, out, size=16, workers=1, dry_run=True)
    assert (dry.planned, dry.reused) == (6, 0)
    precompile.build(raw, out, size=16, workers=1)
    assert "0 inputs unchanged; 6 new, changed or touched (4 of known name and size)" in capsys.readouterr().err
    dry = precompile.build(raw, out, size=16, workers=1, dry_run=True)
    assert (dry.planned, dry.reused, dry.generation) == (6, 6, 3)


def test_a_build_says_that_there_are_no_labels(tmp_path, make_photos, capsys):
    raw = make_photos(tmp_path / "raw", count=2, classes=1, splits=())
    precompile.build(raw / "class0", tmp_path / "out", workers=1)
    assert "no labels: there are no class folders, or no label column" in capsys.readouterr().err
