from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builds import cli, save_image

import precompile
from precompile.errors import DatasetNotFoundError, FormatError, SourceError
from precompile.pipeline.checksum import file_checksum
from precompile.pipeline.verify import verify


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 images compiled to three shards or more, beside their source `raw`."""
    home = tmp_path_factory.mktemp("verify")
    for number in range(12):
        save_image(home / "raw" / f"c{number % 2}" / f"{number:02d}.png", number)
    precompile.build(home / "raw", home / "out", workers=1, quiet=True, store="flat", shard_size=800)
    return home


@pytest.fixture
def out(original: Path, tmp_path: Path) -> Path:
    """A copy to damage; its source is `raw` beside it."""
    shutil.copytree(original, tmp_path / "copy")
    manifest = tmp_path / "copy" / "out" / "manifest.json"
    moved = manifest.read_text().replace(str(original), str(tmp_path / "copy"))
    manifest.write_text(moved)
    (manifest.parent / "generations" / "000001" / "manifest.json").write_text(moved)
    return manifest.parent


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def shards(out: Path) -> list[Path]:
    return sorted((out / "shards").iterdir())


def test_a_whole_dataset_has_no_finding(out: Path) -> None:
    assert verify(out) == ([], 0)
    assert verify(out, full=True, against_source=0) == ([], 12)
    assert verify(out, against_source=5) == ([], 5)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-64])


@pytest.mark.parametrize(
    ("damage", "message"),
    [(Path.unlink, "the file is missing"), (truncate, r"expected \d+ bytes, found \d+")],
)
@pytest.mark.parametrize("which", ["shard", "index"])
def test_missing_and_truncated_files_are_found(
    out: Path, damage: Callable[[Path], None], message: str, which: str
) -> None:
    path = shards(out)[0] if which == "shard" else out / "generations" / "000001" / "crc32.npy"
    damage(path)
    findings, _ = verify(out)
    assert [finding.where for finding in findings] == [str(path)]
    assert re.fullmatch(message, findings[0].what)


def test_swapped_shards_of_equal_size_need_full(out: Path) -> None:
    first, second = shards(out)[:2]
    data = first.read_bytes(), second.read_bytes()
    assert len(data[0]) == len(data[1])
    first.write_bytes(data[1])
    second.write_bytes(data[0])
    assert verify(out) == ([], 0)
    findings, _ = verify(out, full=True)
    assert {finding.where for finding in findings} == {str(first), str(second)}
    assert all("expected checksum" in finding.what for finding in findings)


def test_full_finds_one_flipped_bit_in_any_file(out: Path) -> None:
    manifest = json.loads((out / "manifest.json").read_text())
    paths = [*shards(out), *(out / "generations" / "000001" / name for name in manifest["index"])]
    for path in paths:
        if path.stat().st_size:
            flip(path, path.stat().st_size - 1)
            findings, _ = verify(out, full=True)
            assert [finding.where for finding in findings] == [str(path)]
            flip(path, path.stat().st_size - 1)
    assert verify(out, full=True) == ([], 0)


def test_full_finds_a_record_whose_shard_was_forged(out: Path) -> None:
    """The file's checksum is made to fit; the record's own does not."""
    path = shards(out)[0]
    flip(path, 64)
    manifest = json.loads((out / "manifest.json").read_text())
    shard = next(shard for shard in manifest["shards"] if shard["file"] == path.name)
    shard["xxh3"] = file_checksum(path)
    for copy in out.rglob("manifest.json"):
        copy.write_text(json.dumps(manifest))
    findings, _ = verify(out, full=True)
    assert [finding.what for finding in findings] == ["the record's checksum differs"]
    assert findings[0].where in list(precompile.CompiledDataset(out).keys)


def test_against_source_finds_what_changed(out: Path) -> None:
    raw = out.parent / "raw"
    save_image(raw / "c0" / "02.png", 99)
    (raw / "c1" / "05.png").unlink()
    (raw / "c0" / "08.png").write_bytes(b"broken")
    findings, compared = verify(out, against_source=0)
    assert compared == 12
    assert {finding.where: finding.what for finding in findings} == {
        "c0/02.png": "differs from what the source gives now",
        "c1/05.png": "is no longer in the source",
        "c0/08.png": "cannot be compiled again: not an image in a format that Pillow can read",
    }


def test_against_a_source_that_is_gone(out: Path) -> None:
    shutil.rmtree(out.parent / "raw")
    with pytest.raises(SourceError, match="raw: no such file or folder"):
        verify(out, against_source=1)


def test_what_is_no_dataset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="none: no such directory; run `precompile build SOURCE"):
        verify(tmp_path / "none")
    with pytest.raises(DatasetNotFoundError, match=r"no compiled dataset here \(no manifest.json\)"):
        verify(tmp_path)


def test_a_newer_format_is_an_error(out: Path) -> None:
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**manifest, "format_version": 99}))
    with pytest.raises(FormatError, match=r"format_version 99 is newer than 1.*; upgrade precompile"):
        verify(out)


def test_command(out: Path) -> None:
    done = cli("verify", out, "--full", "--against-source", "3", "--json")
    assert (done.code, done.json) == (0, {"ok": True, "findings": [], "compared": 3})
    assert "no findings" in cli("verify", out).out
    path = shards(out)[0]
    path.unlink()
    found = cli("verify", out)
    assert (found.code, found.err) == (1, f"error: {path}: the file is missing\n")
    assert "1 finding\n" in found.out
    found = cli("verify", out, "--json")
    assert found.code == 1
    assert found.json == {"ok": False, "findings": [{"where": str(path), "what": "the file is missing"}], "compared": 0}


@pytest.mark.parametrize("number", ["0", "-1", "some", "1.5"])
def test_command_refuses_a_wrong_number(out: Path, number: str) -> None:
    done = cli("verify", out, f"--against-source={number}")
    assert (done.code, done.error) == (
        2, f"error: --against-source must be a number of at least 1, or all, got '{number}'",
    )  # fmt: skip
