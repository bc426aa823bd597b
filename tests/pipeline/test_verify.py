"""Whatever is damaged is found, and named by file, shard and sample."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builds import save_image, unchanged
from damage import cut, edit_column, edit_manifest, extend, flip, forge_index, index_file, make_folder, place, shards
from inline_executor import inline  # noqa: F401  (a fixture)

import precompile
from precompile.errors import DatasetNotFoundError, FormatError
from precompile.format.generation import list_generations
from precompile.format.lease import Lease, is_in_use, take_lease
from precompile.pipeline import hold
from precompile.pipeline import verify as module
from precompile.pipeline.checksum import file_checksum
from precompile.pipeline.verify import verify


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 images of two shapes and a broken one, with a column of text, compiled to three shards or more."""
    home = tmp_path_factory.mktemp("verify")
    for number in range(12):
        save_image(home / f"{number:02d}.png", number, side=8 + number % 2)
    (home / "broken.png").write_text("broken")
    rows = [f"{number:02d}.png,c{number % 2},note {number}" for number in range(12)]
    (home / "table.csv").write_text("\n".join(["path,label,note", *rows, "broken.png,c0,none"]) + "\n")
    precompile.build(home / "table.csv", home / "out", workers=1, quiet=True, store="flat", shard_size=1000)
    return home / "out"


@pytest.fixture
def out(original: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(original, tmp_path / "out")


@pytest.mark.parametrize("full", [False, True])
def test_a_whole_dataset_has_no_finding(
    out: Path, compiled_photos: Path, compiled_clips: Path, tmp_path: Path, full: bool
) -> None:
    with unchanged(tmp_path):
        for root in (out, compiled_photos, compiled_clips):
            assert verify(root, full=full) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "the file is missing"),
        (cut, r"expected \d+ bytes, found \d+"),
        (extend, r"expected \d+ bytes, found \d+"),
        (make_folder, "expected a file, found a folder or a device; .*"),
    ],
)
@pytest.mark.parametrize("full", [False, True])
def test_a_damaged_shard_says_whose_records_it_holds(
    out: Path, damage: Callable[[Path], None], message: str, full: bool
) -> None:
    path, _, _ = place(out, "05.png")
    keys = [f"{number:02d}.png" for number in range(12)]
    inside = [key for key in keys if place(out, key)[0] == path]
    damage(path)
    finding, *others = verify(out, full=full)
    assert (finding.file, finding.shard, finding.sample) == (str(path), path.name, "")
    named = f"it holds {len(inside)} samples: {', '.join(inside[:3])}" + (", …" if len(inside) > 3 else "")
    assert re.fullmatch(f"{message}; {named}", finding.what)
    assert all(other.sample in inside and other.what == "the record's checksum differs" for other in others)
    assert len(others) == (1 if full and damage is cut else 0)


@pytest.mark.parametrize("damage", [Path.unlink, cut, extend, make_folder])
@pytest.mark.parametrize(
    "name", ["record.npy", "crc32.npy", "key.data.npy", "column.note.offsets.npy", "source.stat.npy"]
)
def test_a_damaged_index_file_is_named(out: Path, damage: Callable[[Path], None], name: str) -> None:
    path = index_file(out, name)
    damage(path)
    assert [(finding.file, finding.shard) for finding in verify(out)] == [(str(path), "")]


def test_damaged_shards_are_found_beside_a_damaged_index(out: Path) -> None:
    path = shards(out)[0]
    index_file(out, "key.data.npy").unlink()
    path.unlink()
    assert [(finding.what, finding.shard) for finding in verify(out)] == [
        ("the file is missing", ""), ("the file is missing", path.name),
    ]  # fmt: skip


@pytest.mark.usefixtures("inline")
def test_swapped_shards_of_equal_size_need_full(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for number in range(4):
        save_image(tmp_path / "raw" / f"{number}.png", number)
    precompile.build(tmp_path / "raw", out, workers=1, quiet=True, store="flat", shard_size=400)
    first, second = shards(out)
    data = first.read_bytes(), second.read_bytes()
    assert len(data[0]) == len(data[1])
    first.write_bytes(data[1])
    second.write_bytes(data[0])
    assert verify(out) == []
    assert {finding.file for finding in verify(out, full=True)} == {str(first), str(second)}


def test_full_finds_one_flipped_bit_in_any_file(out: Path) -> None:
    manifest = json.loads((out / "manifest.json").read_text())
    paths = [*shards(out), *(index_file(out, name) for name in manifest["index"])]
    for path in paths:
        for position in range(-min(2, path.stat().st_size), 0):
            flip(path, position)
            assert {finding.file for finding in verify(out, full=True)} == {str(path)}
            flip(path, position)
    assert verify(out, full=True) == []


def test_full_names_the_samples_of_damaged_records(out: Path) -> None:
    path, offset, length = place(out, "05.png")
    flip(path, offset + length - 1)
    assert verify(out) == []
    file, record = verify(out, full=True)
    assert (file.what.partition(",")[0], file.sample) == (f"expected checksum {path.stem}", "")
    assert (record.what, record.sample, record.shard) == ("the record's checksum differs", "05.png", path.name)
    assert str(record) == f"05.png in {path}: the record's checksum differs"


def test_full_finds_a_record_whose_shard_was_forged(out: Path) -> None:
    """The file's checksum is made to fit; the record's own does not."""
    path, offset, _ = place(out, "05.png")
    flip(path, offset)

    def forge(manifest: dict[str, Any]) -> None:
        shard = next(shard for shard in manifest["shards"] if shard["file"] == path.name)
        shard["xxh3"] = file_checksum(path)

    edit_manifest(out, forge)
    assert [(finding.what, finding.sample) for finding in verify(out, full=True)] == [
        ("the record's checksum differs", "05.png")
    ]


@pytest.mark.usefixtures("inline")
def test_at_most_twenty_findings_a_shard(tmp_path: Path) -> None:
    for number in range(25):
        save_image(tmp_path / "raw" / f"{number:02d}.png", number)
    precompile.build(tmp_path / "raw", tmp_path / "out", workers=1, quiet=True, store="flat")
    (path,) = shards(tmp_path / "out")
    path.write_bytes(bytes(path.stat().st_size))
    findings = verify(tmp_path / "out", full=True)
    assert len(findings) == 20
    assert findings[0].what.endswith("it holds 25 samples: 00.png, 01.png, 02.png, …")
    assert len({finding.sample for finding in findings[1:19]}) == 18
    assert findings[19].what == "7 more records have another checksum"


def set_row(row: int, value: object) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array[row] = value

    return change


def add_to(row: int, column: int, value: int) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array[row, column] += value

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("record.npy", add_to(5, 1, 1), r"of 243 bytes at \d+ of shard \d must lie in a shard, at a multiple of 64"),
        ("record.npy", add_to(5, 1, -64000), "must lie in a shard"),
        ("record.npy", add_to(5, 1, 2**62), "must lie in a shard"),
        ("record.npy", set_row(5, (0, 64, 2**63 - 1)), "must lie in a shard"),
        ("record.npy", set_row(5, (99, 64, 243)), "of shard 99 must lie in a shard"),
        ("record.npy", set_row(5, (-1, 64, 243)), "of shard -1 must lie in a shard"),
        ("record.npy", add_to(5, 2, -1), r"image \(3, 9, 9\) needs a record of 243 bytes, not of 242"),
        ("shape.image.npy", set_row(5, (3, 9, 0)), r"expected at least one element, got shape \(3, 9, 0\)"),
        ("shape.image.npy", set_row(5, (4, 9, 9)), r"shape \(4, 9, 9\) does not fit the declared \(3, None, None\)"),
        ("shape.image.npy", set_row(5, (3, 9, 8)), r"image \(3, 9, 8\) needs a record of 216 bytes, not of 243"),
        ("shape.image.npy", set_row(5, (3, 2**62, 2**62)), "needs a record of"),
        ("column.label.npy", set_row(5, 2), r"a label must be from -1 \(none\) to 1, got 2"),
        ("column.label.npy", set_row(5, -2), r"a label must be from -1 \(none\) to 1, got -2"),
    ],
)  # fmt: skip
def test_a_row_that_contradicts_the_rest_names_its_sample(
    out: Path, name: str, change: Callable[[np.ndarray], None], message: str
) -> None:
    path = edit_column(out, name, change)
    findings = verify(out)
    assert {finding.sample for finding in findings} == {"05.png"}
    assert findings[0].file in (str(path), str(index_file(out, "record.npy")))
    assert re.search(message, findings[0].what)
    assert [finding.file for finding in verify(out, full=True)] == [str(path)]
    forge_index(out)
    assert any(re.search(message, finding.what) for finding in verify(out, full=True))


@pytest.mark.usefixtures("inline")
def test_many_rows_that_are_wrong_in_one_way_are_named_up_to_a_limit(tmp_path: Path) -> None:
    for number in range(25):
        save_image(tmp_path / "raw" / "c" / f"{number:02d}.png", number)
    precompile.build(tmp_path / "raw", tmp_path / "out", workers=1, quiet=True)
    edit_column(tmp_path / "out", "column.label.npy", lambda label: label + 7)
    *named, last = verify(tmp_path / "out")
    assert [finding.sample for finding in named] == [f"c/{number:02d}.png" for number in range(20)]
    assert last.what == "5 more samples are wrong in the same way"


@pytest.mark.parametrize("name", ["key.offsets.npy", "column.note.offsets.npy"])
def test_offsets_of_text_must_ascend(out: Path, name: str) -> None:
    path = edit_column(out, name, set_row(5, 0))
    assert [(finding.file, finding.what) for finding in verify(out)] == [
        (str(path), "the offsets of the text must ascend; restore the file or build again")
    ]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("crc32.npy", lambda array: array[:-1], r"expected uint32 of shape \(12,\), found uint32 of shape \(11,\)"),
        ("key.offsets.npy", lambda array: array[:-1], r"expected int64 of shape \(13,\)"),
        ("shape.image.npy", lambda array: array[:, :2], r"expected int64 of shape \(12, 3\)"),
        ("column.label.npy", lambda array: array.astype(np.int32), "expected int64"),
        ("source.stat.npy", lambda array: array[:, :3], r"expected int64 of shape \(12, 4\)"),
        ("source.xxh3.npy", lambda array: array[:-1], r"expected uint64 of shape \(12,\)"),
    ],
)
def test_columns_of_another_length_or_type(
    out: Path, name: str, change: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    path = edit_column(out, name, change)
    forge_index(out)
    (finding,) = verify(out)
    assert finding.file == str(path)
    assert re.search(message, finding.what)


def test_the_quarantine_must_have_as_many_rows_as_the_manifest_says(out: Path) -> None:
    path = index_file(out, "quarantine.jsonl")
    path.write_text(path.read_text() * 2)
    forge_index(out)
    assert [(finding.file, finding.what) for finding in verify(out)] == [(str(path), "expected 1 rows, found 2")]
    path.write_text("junk\n")
    forge_index(out)
    assert [finding.file for finding in verify(out)] == [str(path)]


@pytest.mark.parametrize("damage", [Path.unlink, extend, make_folder, lambda path: flip(path, 5)])
def test_the_manifest_that_is_read_must_be_the_one_that_was_committed(
    out: Path, damage: Callable[[Path], None]
) -> None:
    copy = index_file(out, "manifest.json")
    damage(copy)
    (finding,) = verify(out)
    assert finding.file == str(copy)
    assert finding.what.startswith(f"must equal {out / 'manifest.json'}, ")
    assert finding.what.endswith("; copy the one that is right over the other")


def test_full_finds_an_index_that_was_forged(out: Path) -> None:
    edit_column(out, "column.label.npy", set_row(5, 0))
    forge_index(out)
    assert verify(out) == []
    assert [finding.what for finding in verify(out, full=True)] == [
        "the fingerprint does not fit schema, classes, splits, keys, columns and checksums"
    ]


def test_a_file_that_cannot_be_read_is_a_finding(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> str:
        if path.suffix == ".flat":
            raise OSError(errno.EIO, "Input/output error")
        return file_checksum(path)

    monkeypatch.setattr(module, "file_checksum", fail)
    findings = verify(out, full=True)
    assert {finding.file for finding in findings} == set(map(str, shards(out)))
    assert all("cannot be read: Input/output error" in finding.what for finding in findings)


def test_pipes_are_not_waited_for(out: Path) -> None:
    paths = [index_file(out, "quarantine.jsonl"), index_file(out, "manifest.json"), index_file(out, "crc32.npy")]
    for path in (*paths, shards(out)[0]):
        path.unlink()
        os.mkfifo(path)
    findings = verify(out, full=True)
    assert {finding.file for finding in findings} >= {*map(str, paths)}
    assert all("found a folder or a device" in finding.what for finding in findings)


def test_a_build_cannot_remove_what_is_being_verified(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def note(path: Path) -> str:
        seen.append(is_in_use(index_file(out, "manifest.json").parent))
        return file_checksum(path)

    monkeypatch.setattr(module, "file_checksum", note)
    assert verify(out, full=True) == []
    assert set(seen) == {True}
    assert not is_in_use(index_file(out, "manifest.json").parent)


@pytest.mark.usefixtures("inline")
def test_a_generation_that_was_replaced_just_now_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    save_image(raw / "0.png", 0)
    precompile.build(raw, out, workers=1, quiet=True)

    def build_first(directory: Path) -> Lease | None:
        if not (raw / "1.png").exists():
            save_image(raw / "1.png", 1)
            precompile.build(raw, out, workers=1, quiet=True, keep=1)
        return take_lease(directory)

    monkeypatch.setattr(hold, "take_lease", build_first)
    assert verify(out, full=True) == []
    assert list_generations(out) == [2]


def test_what_is_no_dataset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="none: no such directory; run `precompile build SOURCE"):
        verify(tmp_path / "none")
    with pytest.raises(DatasetNotFoundError, match=r"no compiled dataset here \(no manifest.json\)"):
        verify(tmp_path)


def test_a_newer_format_is_an_error(out: Path) -> None:
    edit_manifest(out, lambda manifest: manifest.update(format_version=99))
    with pytest.raises(FormatError, match=r"format_version 99 is newer than 1.*; upgrade precompile"):
        verify(out)
