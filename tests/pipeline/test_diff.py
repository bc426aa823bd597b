from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from builds import save_image
from inline_executor import inline  # noqa: F401  (a fixture)
from PIL import Image

import precompile
from precompile.format.text import TextColumn
from precompile.pipeline.columns import differs
from precompile.pipeline.diff import diff
from precompile.pipeline.earlier import open_earlier

pytestmark = pytest.mark.usefixtures("inline")


def build(raw: Path, out: Path, **options: object) -> None:
    precompile.build(raw, out, quiet=True, workers=1, store="flat", allow_shrink=True, keep=9, **options)


def changes(out: Path, old: int = 1, new: int = 2) -> dict[str, list[str]]:
    """Only what is not empty."""
    found = asdict(diff(open_earlier(out, old), open_earlier(out, new)))
    return {what: list(keys) for what, keys in found.items() if keys}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for number in range(6):
        save_image(tmp_path / "raw" / f"c{number % 2}" / f"{number}.png", number)
    return tmp_path / "raw"


@pytest.fixture
def out(raw: Path, tmp_path: Path) -> Path:
    build(raw, tmp_path / "out")
    return tmp_path / "out"


def test_one_generation_does_not_differ_from_itself(out: Path) -> None:
    assert changes(out, 1, 1) == {}


def test_added_removed_and_changed(raw: Path, out: Path) -> None:
    save_image(raw / "c0" / "new.png", 9)
    (raw / "c1" / "1.png").unlink()
    save_image(raw / "c0" / "2.png", 7)
    (raw / "c1" / "3.png").rename(raw / "c1" / "renamed.png")
    build(raw, out)
    assert changes(out) == {
        "added": ["c0/new.png"], "removed": ["c1/1.png"], "changed": ["c0/2.png"],
        "renamed": [("c1/3.png", "c1/renamed.png")],
    }  # fmt: skip
    assert changes(out, 2, 1) == {
        "added": ["c1/1.png"], "removed": ["c0/new.png"], "changed": ["c0/2.png"],
        "renamed": [("c1/renamed.png", "c1/3.png")],
    }  # fmt: skip


def test_a_file_that_was_moved_to_another_class_is_relabelled(raw: Path, out: Path) -> None:
    (raw / "c1" / "3.png").rename(raw / "c0" / "3.png")
    shutil.copyfile(raw / "c1" / "1.png", raw / "c1" / "copy.png")
    build(raw, out)
    assert changes(out) == {"added": ["c1/copy.png"], "relabelled": ["c0/3.png"]}


def test_equal_files_are_paired_one_by_one(raw: Path, out: Path) -> None:
    for number in range(3):
        shutil.copyfile(raw / "c0" / "0.png", raw / "c0" / f"copy{number}.png")
    build(raw, out)
    (raw / "c0" / "copy0.png").rename(raw / "c0" / "x.png")
    (raw / "c0" / "copy1.png").unlink()
    build(raw, out)
    assert changes(out, 2, 3) == {"removed": ["c0/copy1.png"], "renamed": [("c0/copy0.png", "c0/x.png")]}


def test_records_that_were_copied_elsewhere_did_not_change(raw: Path, out: Path) -> None:
    for number in range(4):
        (raw / f"c{number % 2}" / f"{number}.png").unlink()
    build(raw, out)
    old, new = (precompile.CompiledDataset(out, generation=n).manifest.shards for n in (1, 2))
    assert {shard.file for shard in old}.isdisjoint(shard.file for shard in new)
    assert changes(out) == {"removed": ["c0/0.png", "c0/2.png", "c1/1.png", "c1/3.png"]}


def test_numbers_of_classes_may_shift(raw: Path, out: Path) -> None:
    save_image(raw / "a" / "new.png", 9)
    build(raw, out)
    assert precompile.CompiledDataset(out).classes == ["a", "c0", "c1"]
    assert changes(out) == {"added": ["a/new.png"]}


def test_a_class_that_was_renamed_in_the_class_list_is_another(tmp_path: Path) -> None:
    write_table(tmp_path, ["cat", "dog", "cat"])
    build(tmp_path / "table.csv", tmp_path / "out")
    write_table(tmp_path, ["wolf", "dog", "wolf"])
    build(tmp_path / "table.csv", tmp_path / "out")
    assert precompile.CompiledDataset(tmp_path / "out").classes == ["dog", "wolf"]
    assert changes(tmp_path / "out") == {"relabelled": ["0.png", "2.png"]}


@pytest.mark.parametrize(
    ("old", "new"),
    [(["a", "b", "c"], ["", "b", "c"]), (["0", "1", "2"], ["1", "1", "2"]), (["a", "", ""], ["", "", ""])],
)
def test_no_label_is_a_label_too(tmp_path: Path, old: list[str], new: list[str]) -> None:
    for labels in (old, new):
        write_table(tmp_path, labels)
        build(tmp_path / "table.csv", tmp_path / "out")
    assert changes(tmp_path / "out") == {"relabelled": ["0.png"]}


def test_another_split_is_relabelled_and_another_column_changed(tmp_path: Path) -> None:
    write_table(tmp_path, ["a", "b", "b"], split=["train", "val", "val"], note=["x", "y", "z"], weight=["1", "", "3"])
    build(tmp_path / "table.csv", tmp_path / "out")
    write_table(tmp_path, ["a", "b", "b"], split=["train", "train", "val"], note=["x", "y", "!"], weight=["1", "", "3"])
    build(tmp_path / "table.csv", tmp_path / "out")
    assert changes(tmp_path / "out") == {"changed": ["2.png"], "relabelled": ["1.png"]}


@pytest.mark.parametrize("weight", [["1", "2", "3"], ["1.5", "2", "3"], ["x", "2", "3"]])
def test_a_new_column_changes_every_sample_and_a_new_type_what_differs(tmp_path: Path, weight: list[str]) -> None:
    write_table(tmp_path, ["a", "b", "b"])
    build(tmp_path / "table.csv", tmp_path / "out")
    write_table(tmp_path, ["a", "b", "b"], weight=["1", "2", "3"])
    build(tmp_path / "table.csv", tmp_path / "out")
    assert changes(tmp_path / "out") == {"changed": ["0.png", "1.png", "2.png"]}
    write_table(tmp_path, ["a", "b", "b"], weight=weight, other=["1", "1", "1"])
    build(tmp_path / "table.csv", tmp_path / "out", rebuild=True)
    write_table(tmp_path, ["a", "b", "b"], weight=["1", "2", "3"], other=["1", "1", "1"])
    build(tmp_path / "table.csv", tmp_path / "out", rebuild=True)
    expected = {"1": [], "1.5": ["0.png"], "x": ["0.png", "1.png", "2.png"]}[weight[0]]
    assert changes(tmp_path / "out", 3, 4).get("changed", []) == expected


def test_equal_bytes_of_another_shape_or_type_are_changed(tmp_path: Path) -> None:
    for number, (height, width) in enumerate([(4, 6), (6, 4)]):
        folder = tmp_path / str(number)
        save_image(folder / "other.png", 3)
        Image.fromarray(np.full((height, width, 3), 200, np.uint8)).save(folder / "gray.png")
    build(tmp_path / "0", tmp_path / "out")
    build(tmp_path / "1", tmp_path / "out")
    assert changes(tmp_path / "out") == {"changed": ["gray.png"]}
    build(tmp_path / "1", tmp_path / "out", layout="HWC")
    assert changes(tmp_path / "out", 2, 3) == {"changed": ["gray.png", "other.png"]}


def test_nothing_in_common(raw: Path, out: Path, tmp_path: Path) -> None:
    shutil.rmtree(raw)
    save_image(raw / "z" / "z.png", 100)
    build(raw, out)
    found = changes(out)
    assert (found["added"], len(found["removed"])) == (["z/z.png"], 6)
    assert set(found) == {"added", "removed"}


def test_nan_is_nan() -> None:
    left, right = np.array([1.0, np.nan, np.nan, 2.0]), np.array([1.0, np.nan, 3.0, np.nan])
    assert differs(left, right, 4).tolist() == [False, False, True, True]


def test_columns_of_text() -> None:
    left, right = TextColumn.of(["a", "", "é"]), TextColumn.of(["a", "b", "é"])
    assert differs(left, right, 3).tolist() == [False, True, False]
    assert differs(left, np.zeros(3), 3).tolist() == differs(None, right, 3).tolist() == [True] * 3
    assert differs(None, None, 3).tolist() == [False] * 3


def write_table(folder: Path, labels: list[str], **columns: list[str]) -> None:
    """table.csv of the images 0.png, 1.png, …; they are made once."""
    for number in range(len(labels)):
        if not (folder / f"{number}.png").exists():
            save_image(folder / f"{number}.png", number)
    rows = [
        ["path", "label", *columns],
        *([f"{n}.png", *cells] for n, cells in enumerate(zip(labels, *columns.values()))),
    ]
    (folder / "table.csv").write_text("".join(",".join(row) + "\n" for row in rows))
