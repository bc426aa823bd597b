"""Inputs planned at once, by the listing of a source, and one by one, by its samples."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precompile.format.text import TextColumn
from precompile.pipeline.plan import MISSING, Plan, make_plan
from precompile.pipeline.recipe import make_recipe
from precompile.pipeline.sample import Listing, RawSample, Source
from precompile.pipeline.sources import open_source

FILES = ("train/cat/1.jpg", "train/cat/sub dir/2.PNG", "train/dög/1.jpg", "val/cat/1.jpg", "test/x.jpg")
TABLE = "path,split,label,weight,rank,note\n" + "".join(
    f"{path},{'ba'[number % 2]},{label},{number / 4},{number},n{number}\n"
    for number, (path, label) in enumerate(zip(FILES, ["cat", "", "dog", "cat", "ape"]))
)


@dataclass
class Unlisted:
    """A source without its listing."""

    source: Source

    def __post_init__(self) -> None:
        self.media, self.classes, self.left_out = self.source.media, self.source.classes, self.source.left_out

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> RawSample:
        return self.source[index]


def facts(plan: Plan) -> dict[str, Any]:
    """All that a plan says, to be compared."""
    columns = {name: (type(c), list(c) if isinstance(c, TextColumn) else (c.dtype, c.tolist()))
               for name, c in plan.columns.items()}  # fmt: skip
    arrays = {name: getattr(plan, name) for name in ("source_index", "stat", "order")}
    return {
        "keys": list(plan.keys),
        "paths": list(plan.paths),
        **{name: (array.dtype, array.tolist()) for name, array in arrays.items()},
        "splits": plan.splits,
        "classes": plan.classes,
        "columns": list(columns.items()),
        "digest": plan.digest,
    }


def assert_planned_alike(source: Source, /, **keys: Any) -> Plan:
    assert isinstance(source.listing, Listing)
    plan = make_plan(source, make_recipe(**keys))
    assert facts(plan) == facts(make_plan(Unlisted(source), make_recipe(**keys)))
    return plan


@pytest.mark.parametrize(
    ("paths", "keys"),
    [
        (FILES, {}),
        (FILES, {"splits": "none"}),
        (FILES, {"splits": "none", "classes": ["val", "train", "test", "more"]}),
        (FILES, {"order": "source"}),
        (FILES, {"seed": 7}),
        (("b.jpg", "a.jpg"), {}),
        (("b.jpg", "a.jpg"), {"classes": ["x", "y"]}),
        (("train/1.jpg", "test/1.jpg"), {}),
        (("yes/b.wav", "no/a.flac", "no/left.jpg"), {"source": "audio_folder"}),
        ((f"class/{os.fsdecode(bytes([255]))}.jpg", "class/line\nbreak.jpg", "class/ü 猫.jpg"), {}),
    ],
)
def test_folders(tree: Callable[..., Path], paths: tuple[str, ...], keys: dict[str, Any]) -> None:
    root = tree(*paths)
    plan = assert_planned_alike(open_source(root, make_recipe(**keys)), **keys)
    assert all(os.path.samefile(root / key, path) for key, path in zip(plan.keys, plan.paths))


def test_a_table_with_columns_and_mixed_splits(tree: Callable[..., Path]) -> None:
    source = open_source(tree(*FILES, files={"table.csv": TABLE.encode()}) / "table.csv", make_recipe())
    plan = assert_planned_alike(source)
    assert plan.source_index.tolist() == [1, 3, 0, 2, 4]
    assert list(plan.columns) == ["label", "weight", "rank", "note"]


def test_a_table_with_files_elsewhere_and_missing_ones(tree: Callable[..., Path], tmp_path: Path) -> None:
    outside = tmp_path / "outside.jpg"
    outside.write_bytes(b"outside")
    rows = f"path\na.jpg\n{outside}\nnone.jpg\n../other.jpg\n"
    root = tree("a.jpg", files={"table.csv": rows.encode()})
    source = open_source(root / "table.csv", make_recipe(missing="quarantine"))
    plan = assert_planned_alike(source, missing="quarantine")
    assert list(plan.paths) == [str(root / "a.jpg"), str(outside), str(root / "none.jpg"), str(tmp_path / "other.jpg")]
    assert plan.stat[:, 0].tolist() == [0, 7, MISSING, MISSING]


def test_classes_that_the_listing_does_not_have(tree: Callable[..., Path]) -> None:
    source = open_source(tree("cat/1.jpg", "dog/1.jpg"), make_recipe())
    plan = assert_planned_alike(source, classes=["dog", "cow", "cat"])
    assert plan.columns["label"].tolist() == [2, 0]


def test_a_root_that_is_the_top(tree: Callable[..., Path]) -> None:
    source = open_source(tree("cat/1.jpg"), make_recipe())
    top = replace(source.listing, root="/")
    assert list(make_plan(replace(source, listing=top), make_recipe()).paths) == ["/cat/1.jpg"]


@dataclass
class Listed:
    """An object that is asked for samples in vain."""

    listing: object
    media: str = "image"
    classes: tuple[str, ...] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> RawSample:
        raise LookupError(f"sample {index} was asked for")


def test_any_source_may_have_a_listing(tmp_path: Path) -> None:
    listing = Listing(
        keys=TextColumn.of(["b", "a"]),
        locations=TextColumn.of(["/elsewhere/b.jpg", "here/a.jpg"]),
        root="/data/",
        stat=np.arange(8).reshape(2, 4),
        splits=("val", "unused", "train"),
        split=np.array([0, 2], np.int32),
        classes=("left", "right"),
        columns={"label": np.array([1, -1])},
    )
    plan = make_plan(Listed(listing), make_recipe())
    assert list(plan.keys) == ["a", "b"]
    assert list(plan.paths) == ["/data/here/a.jpg", "/elsewhere/b.jpg"]
    assert [(split.name, split.start, split.count) for split in plan.splits] == [("train", 0, 1), ("val", 1, 1)]
    assert plan.columns["label"].tolist() == [-1, 1]
    assert plan.stat.tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert plan.classes == ("left", "right")


def test_a_listing_without_files_has_no_paths() -> None:
    none = TextColumn.of(["", ""])
    stat, split = np.zeros((2, 4), np.int64), np.zeros(2, np.int32)
    listing = Listing(keys=TextColumn.of(["a", "b"]), locations=none, root="/data", stat=stat, splits=("all",),
                      split=split, classes=None)  # fmt: skip
    assert list(make_plan(Listed(listing), make_recipe()).paths) == ["", ""]


def test_an_attribute_of_that_name_need_not_be_a_listing() -> None:
    with pytest.raises(LookupError, match="sample 0 was asked for"):
        make_plan(Listed(["a", "b"]), make_recipe())


def test_a_second_listing_of_the_same_files_has_the_same_digest(tree: Callable[..., Path]) -> None:
    root = tree(*FILES)

    def digest() -> str:
        return make_plan(open_source(root, make_recipe()), make_recipe()).digest

    first = digest()
    assert digest() == first
    (root / "val/cat/1.jpg").rename(root / "val/cat/2.jpg")
    assert digest() != first


names = st.text("aB0 -.é", min_size=1, max_size=4).filter(lambda name: not name.startswith("."))
trees = st.sets(st.tuples(st.lists(names, max_size=3), names, st.sampled_from([".jpg", ".PNG", ".Webp", ".txt"])).map(
    lambda parts: "/".join([*parts[0], parts[1] + parts[2]])), min_size=1, max_size=15)  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(paths=trees, splits=st.sampled_from(["auto", "none"]), order=st.sampled_from(["shuffled", "source"]))
def test_any_tree(paths: set[str], splits: str, order: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "aB").mkdir()
        (root / "aB/one.jpg").touch()
        for path in paths:
            try:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(path)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue  # the name of a folder is taken by a file
        keys = {"splits": splits, "order": order, "source": "image_folder"}
        assert_planned_alike(open_source(root, make_recipe(**keys)), **keys)
