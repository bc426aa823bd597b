"""`precompile verify`: what it prints, its exit codes, and what it repairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builds import assert_matches, build, cli, save_image, unchanged
from damage import flip, index_file, place, shards
from inline_executor import InlineExecutor, inline  # noqa: F401  (a fixture)

pytestmark = pytest.mark.usefixtures("inline")

HINT = "; --repair makes damaged shards anew from the source"


@pytest.fixture
def compiled(raw: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """12 images in three shards."""
    monkeypatch.setattr("precompile.pipeline.against_source.LocalExecutor", InlineExecutor)
    assert build(raw, out, "--quiet", "--store", "flat", "--shard-size", 800).code == 0
    return out


def test_a_whole_dataset(compiled: Path) -> None:
    for arguments, checked in (
        ((), "files, sizes and places checked"),
        (("--full",), "all checksums checked"),
        (("--repair",), "all checksums checked"),
        (("--against-source", 3), "files, sizes and places checked, 3 samples compared with the source"),
        (("--full", "--against-source", "all"), "all checksums checked, 12 samples compared with the source"),
    ):
        with unchanged(compiled):
            done = cli("verify", compiled, *arguments)
        assert (done.code, done.out, done.err) == (0, f"{compiled}: {checked}: no findings\n", "")
    facts = cli("verify", compiled, "--against-source", 3, "--json").json
    assert facts == {"ok": True, "findings": [], "repaired": [], "compared": 3}


def test_a_finding_is_one_line_and_exit_code_1(compiled: Path) -> None:
    path, _, _ = place(compiled, "c0/00.png")
    path.unlink()
    found = cli("verify", compiled, "--against-source", "all")
    assert found.code == 1
    assert_matches(rf"^error: {path}: the file is missing; it holds \d samples: c0/00\.png, .*\n$", found.err)
    assert found.out == f"{compiled}: files, sizes and places checked, source not compared: 1 finding{HINT}\n"
    facts = cli("verify", compiled, "--json").json
    (finding,) = facts.pop("findings")
    assert facts == {"ok": False, "repaired": [], "compared": 0}
    assert list(finding) == ["where", "what", "file", "sample", "shard"]
    assert (finding["where"], finding["file"], finding["sample"], finding["shard"]) == (
        str(path), str(path), "", path.name,
    )  # fmt: skip


def test_a_difference_from_the_source_names_sample_file_and_shard(raw: Path, compiled: Path) -> None:
    save_image(raw / "c0" / "02.png", 99)
    shard = place(compiled, "c0/02.png")[0].name
    found = cli("verify", compiled, "--against-source", "all")
    what = "the source file has changed since it was compiled; build again"
    assert (found.code, found.err) == (1, f"error: c0/02.png in {raw / 'c0/02.png'} (shard {shard}): {what}\n")
    (finding,) = cli("verify", compiled, "--against-source", "all", "--json").json["findings"]
    assert finding == {
        "where": f"c0/02.png in {raw / 'c0/02.png'} (shard {shard})", "what": what, "file": str(raw / "c0/02.png"),
        "sample": "c0/02.png", "shard": shard,
    }  # fmt: skip


def test_many_findings_are_shown_up_to_a_limit(raw: Path, out: Path, compiled: Path) -> None:
    for number in range(12, 120):
        save_image(raw / "c0" / f"{number:03d}.png", number)
    assert build(raw, out, "--quiet", "--allow-shrink").code == 0
    for path in raw.rglob("*.png"):
        save_image(path, int(path.stem) + 1000)
    lines = cli("verify", compiled, "--against-source", "all").err.splitlines()
    assert len(lines) == 101
    assert lines[-1] == "error: … and 20 more (--json lists all)"
    assert len(cli("verify", compiled, "--against-source", "all", "--json").json["findings"]) == 120


def test_repair(compiled: Path) -> None:
    paths = shards(compiled)[:2]
    before = [path.read_bytes() for path in paths]
    paths[0].unlink()
    flip(paths[1])
    done = cli("verify", compiled, "--repair")
    assert (done.code, done.out.splitlines()[-1]) == (0, f"{compiled}: all checksums checked: no findings")
    assert [path.read_bytes() for path in paths] == before
    repaired = [line for line in done.out.splitlines() if line.startswith("repaired: ")]
    assert [str(path) in line for path, line in zip(paths, repaired)] == [True, True]
    with unchanged(compiled):
        assert cli("verify", compiled, "--repair", "--json").json["repaired"] == []
    flip(paths[0])
    facts = cli("verify", compiled, "--repair", "--against-source", "all", "--json").json
    assert (facts["ok"], facts["findings"], facts["compared"]) == (True, [], 12)
    assert facts["repaired"][0]["shard"] == paths[0].name
    assert cli("info", compiled, "--json").json["generation"] == 3


def test_repair_of_what_can_no_longer_be_compiled_exits_3(raw: Path, compiled: Path) -> None:
    path, _, _ = place(compiled, "c0/00.png")
    flip(path)
    (raw / "c0" / "00.png").write_text("broken")
    done = cli("verify", compiled, "--repair")
    assert done.code == 3
    assert "quarantined: c0/00.png: decode: not an image" in done.err
    assert cli("verify", compiled, "--full").code == 0


@pytest.mark.parametrize("what", ["index", "source"])
def test_what_cannot_be_repaired_is_one_line_and_changes_nothing(raw: Path, compiled: Path, what: str) -> None:
    flip(index_file(compiled, "record.npy") if what == "index" else shards(compiled)[0])
    if what == "source":
        raw.rename(raw.with_name("elsewhere"))
    with unchanged(compiled):
        refused = cli("verify", compiled, "--repair")
    assert (refused.code, refused.out) == (1, "")
    *findings, error = refused.err.splitlines()
    expected = {"index": "only shards can be repaired; restore the file",
                "source": "raw: no such file or folder; --source PATH says where"}  # fmt: skip
    assert error.startswith("error: not repaired: ")
    assert_matches(expected[what], error)
    assert findings
    assert all(line.startswith("error: ") for line in findings)


def test_a_source_that_moved(raw: Path, compiled: Path) -> None:
    moved = raw.rename(raw.with_name("elsewhere"))
    assert cli("verify", compiled, "--against-source", "all").error.startswith(f"error: {raw}: no such file")
    assert cli("verify", compiled, "--against-source", "all", "--source", moved).code == 0
    flip(shards(compiled)[0])
    assert cli("verify", compiled, "--repair", "--source", moved).code == 0


@pytest.mark.parametrize("number", ["0", "-1", "some", "1.5", "²", ""])
def test_a_wrong_number_is_refused(compiled: Path, number: str) -> None:
    done = cli("verify", compiled, f"--against-source={number}")
    assert (done.code, done.error) == (
        2, f"error: --against-source must be a number of at least 1, or all, got '{number}'",
    )  # fmt: skip


def test_a_source_without_a_use_for_it_is_refused(raw: Path, compiled: Path) -> None:
    done = cli("verify", compiled, "--source", raw)
    assert (done.code, done.error) == (2, "error: --source needs --against-source or --repair")


def test_keys_of_any_bytes_are_one_line(tmp_path: Path) -> None:
    save_image(tmp_path / "raw" / "c" / "two\nlines \udcff.png", 1)
    assert build(tmp_path / "raw", tmp_path / "out", "--quiet").code == 0
    shards(tmp_path / "out")[0].unlink()
    found = cli("verify", tmp_path / "out")
    assert len(found.err.splitlines()) == 1
    assert "two\\nlines" in found.error
    assert json.dumps(cli("verify", tmp_path / "out", "--json").json)
