"""`precompile info`: what a dataset holds, what it no longer uses, and what was left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from builds import assert_matches, build, cli, save_image, unchanged
from damage import edit_column
from inline_executor import inline  # noqa: F401  (a fixture)

import precompile

pytestmark = pytest.mark.usefixtures("inline")


def test_what_it_holds(raw: Path, out: Path) -> None:
    (raw / "c0" / "notes.txt").write_text("")
    build(raw, out, "--quiet", "--size", 4, "--crop", 4)
    with unchanged(out):
        text, facts = cli("info", out).out, cli("info", out, "--json").json
    dataset = precompile.CompiledDataset(out)
    for line in (
        "samples      12 (all 12)", "fields       image uint8 (3, 4, 4), label int64", "classes      2: c0, c1",
        f"source       {raw} (image)", "recipe       size=4, crop=4", f"fingerprint  {dataset.fingerprint}",
        "left out     1 .txt", "quarantined  0",
    ):  # fmt: skip
        assert f"{line}\n" in text
    assert "no longer used" not in text
    assert facts["bytes"] == sum(path.stat().st_size for path in (out / "shards").iterdir())
    expected = {"generation": 1, "count": 12, "splits": {"all": 12}, "classes": ["c0", "c1"], "shards": 1,
                "dead_bytes": 0, "mixed_versions": {}, "left_out": {".txt": 1}, "quarantined": []}  # fmt: skip
    assert {key: facts[key] for key in expected} == expected
    assert facts["recipe"]["size"] == 4


def test_quarantined_inputs_come_with_all_that_is_known(raw: Path, out: Path) -> None:
    bad = raw / "c0" / "bad.png"
    bad.write_bytes(b"broken")
    build(raw, out, "--quiet")
    build(raw, out, "--quiet", "--retry-quarantined")
    (row,) = cli("info", out, "--json").json["quarantined"]
    stat = bad.stat()
    assert row == {
        "key": "c0/bad.png", "path": str(bad), "split": "all", "stage": "decode", "error": row["error"],
        "message": "not an image in a format that Pillow can read", "size": 6,
        "xxh3": xxhash.xxh3_64_hexdigest(b"broken"), "attempts": 2, "mtime_ns": stat.st_mtime_ns,
        "ctime_ns": stat.st_ctime_ns, "inode": stat.st_ino,
    }  # fmt: skip
    text = cli("info", out).out
    assert "quarantined  1\n  c0/bad.png: decode: not an image in a format that Pillow can read\n" in text
    for number in range(25):
        (raw / "c0" / f"bad{number}.png").write_bytes(b"broken")
    build(raw, out, "--quiet")
    assert "  … and 6 more (--json lists all)\n" in cli("info", out).out
    assert len(cli("info", out, "--json").json["quarantined"]) == 26


def test_dead_bytes_are_those_of_records_that_are_no_longer_used(raw: Path, out: Path) -> None:
    build(raw, out, "--quiet", "--store", "flat")
    for number in range(3):
        (raw / f"c{number % 2}" / f"{number:02d}.png").unlink()
    build(raw, out, "--quiet", "--store", "flat", "--allow-shrink")
    facts = cli("info", out, "--json").json
    assert (facts["count"], facts["bytes"]) == (9, 64 + 12 * 192)
    assert facts["dead_bytes"] == facts["bytes"] // 4
    assert "MB are no longer used" in cli("info", out).out


def test_a_record_that_two_samples_share_hides_no_dead_one(raw: Path, out: Path) -> None:
    """As many records as samples, and yet one is dead."""
    build(raw, out, "--quiet", "--store", "flat")
    (raw / "c0" / "copy.png").write_bytes((raw / "c0" / "00.png").read_bytes())
    (raw / "c1" / "01.png").unlink()
    build(raw, out, "--quiet", "--store", "flat")
    facts = cli("info", out, "--json").json
    assert facts["count"] == 12
    assert facts["dead_bytes"] == facts["bytes"] // 12


def test_mixed_versions_are_named(raw: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, name in (("1.0", "a"), ("2.0", "b")):
        versions = {"pillow": version, "numpy": "1"}
        monkeypatch.setattr("precompile.pipeline.compile_shard.library_versions", lambda media, v=versions: v)
        save_image(raw / "c0" / f"{name}.png", ord(name))
        build(raw, out, "--quiet")
    assert cli("info", out, "--json").json["mixed_versions"] == {"pillow": ["1.0", "2.0"]}
    assert (
        "mixed        shards were made by pillow 1.0 and 2.0; build --rebuild makes all with the installed ones\n"
    ) in cli("info", out).out
    build(raw, out, "--quiet", "--rebuild")
    assert cli("info", out, "--json").json["mixed_versions"] == {}


def test_generations(raw: Path, out: Path) -> None:
    for size in (4, 5, 6):
        build(raw, out, "--quiet", "--size", size, "--keep", 9)
    listed = cli("info", out, "--generations", "--json").json
    assert [(row["generation"], row["current"], row["count"], row["quarantined"]) for row in listed] == [
        (1, False, 12, 0), (2, False, 12, 0), (3, True, 12, 0),
    ]  # fmt: skip
    assert [row["fingerprint"] for row in listed] == [
        precompile.CompiledDataset(out, generation=generation).fingerprint for generation in (1, 2, 3)
    ]
    assert all(row["bytes"] > 12 * 3 * 16 for row in listed)
    lines = cli("info", out, "--generations").out.splitlines()
    assert [line[:10].split() for line in lines] == [["1"], ["2"], ["*", "3"]]
    assert all("12 samples, 0 quarantined" in line and row["created_at"] in line for line, row in zip(lines, listed))


def test_a_generation_that_is_open_is_marked(raw: Path, out: Path) -> None:
    for size in (4, 5):
        build(raw, out, "--quiet", "--size", size)
    dataset = precompile.CompiledDataset(out, generation=1)
    assert [row["in_use"] for row in cli("info", out, "--generations", "--json").json] == [True, False]
    assert [line.endswith("  in use") for line in cli("info", out, "--generations").out.splitlines()] == [True, False]
    del dataset
    assert [row["in_use"] for row in cli("info", out, "--generations", "--json").json] == [False, False]


def test_a_damaged_old_generation_is_listed_too(raw: Path, out: Path) -> None:
    for size in (4, 5, 6):
        build(raw, out, "--quiet", "--size", size, "--keep", 9)
    (out / "generations" / "000002" / "manifest.json").write_text("{")
    done = cli("info", out, "--generations")
    assert done.code == 0
    assert "  12 samples, " in done.out.splitlines()[2]
    assert_matches(r"^ +2  .*000002/manifest\.json: not valid JSON", done.out.splitlines()[1])
    assert "not valid JSON" in cli("info", out, "--generations", "--json").json[1]["error"]


def test_a_damaged_index_is_named(raw: Path, out: Path) -> None:
    build(raw, out, "--quiet")
    path = edit_column(out, "record.npy", lambda record: record * -1)
    refused = cli("info", out)
    assert (refused.code, refused.error) == (1, f"error: {path}: damaged; run `precompile verify {out} --full`")


@pytest.mark.parametrize("name", ["two\nlines", "bell\a", "no text \udcff"])
def test_names_of_any_bytes_fit_a_line(tmp_path: Path, out: Path, name: str) -> None:
    raw = tmp_path / f"raw {name}"
    save_image(raw / name / "a.png", 1)
    (raw / name / f"b.{name}").write_text("")
    build(raw, out, "--quiet")
    done = cli("info", out)
    assert done.code == 0
    assert [line[:13].strip() for line in done.out.splitlines()] == [
        "dataset", "samples", "fields", "classes", "stored", "source", "recipe", "versions", "fingerprint", "left out",
        "quarantined",
    ]  # fmt: skip
    assert cli("info", out, "--json").json["classes"] == [name]


def test_clips_have_units(clips: Path, out: Path, make_clips: Callable[..., Path]) -> None:
    build(clips, out, "--quiet")
    assert "spectrogram float16 (80, varies) [" in cli("info", out).out
    assert "duration_seconds float64 [s]" in cli("info", out).out
