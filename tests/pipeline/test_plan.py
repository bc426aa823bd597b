from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precompile.errors import RecipeError, SourceError
from precompile.format.index import save_column
from precompile.format.text import TextColumn
from precompile.pipeline.plan import (
    MAX_SHARD_BYTES,
    MIN_SHARD_BYTES,
    MISSING,
    STAT_FIELDS,
    Plan,
    WorkList,
    cut_tasks,
    make_plan,
)
from precompile.pipeline.recipe import make_recipe
from precompile.pipeline.sample import RawSample


@dataclass
class Listed:
    """A source from a list of samples."""

    samples: Sequence[RawSample]
    classes: tuple[str, ...] | None = None
    media: str = "image"
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> RawSample:
        return self.samples[index]


def sample(key: str, split: str = "all", **parts: Any) -> RawSample:
    return RawSample(key, split, {"image": b"data", **parts})


def plan_of(*samples: RawSample, classes: tuple[str, ...] | None = None, **keys: Any) -> Plan:
    return make_plan(Listed(samples, classes), make_recipe(**keys))


@pytest.fixture
def many() -> list[RawSample]:
    return [sample(f"{number:03d}", "val" if number % 3 else "train", label=f"c{number % 4}") for number in range(60)]


def test_splits_stand_one_after_another_in_source_order(many: list[RawSample]) -> None:
    plan = plan_of(*many)
    assert [(split.name, split.start, split.count) for split in plan.splits] == [("train", 0, 20), ("val", 20, 40)]
    expected = [s.key for s in many if s.split == "train"] + [s.key for s in many if s.split == "val"]
    assert list(plan.keys) == expected
    assert [many[index].key for index in plan.source_index] == expected
    assert plan.classes == ("c0", "c1", "c2", "c3")
    np.testing.assert_array_equal(plan.columns["label"], [int(key) % 4 for key in expected])
    assert list(plan.paths) == [""] * 60
    assert (plan.stat == plan.stat[0]).all()


@pytest.mark.parametrize("order", ["shuffled", "source"])
def test_every_input_is_placed_once(many: list[RawSample], order: str) -> None:
    plan = plan_of(*many, order=order)
    np.testing.assert_array_equal(np.sort(plan.order), np.arange(60))
    assert (plan.order == np.arange(60)).all() == (order == "source")


def test_placement_depends_on_key_and_seed_only(many: list[RawSample]) -> None:
    def placed(samples: list[RawSample], seed: int) -> list[str]:
        plan = plan_of(*samples, seed=seed)
        return [plan.keys[index] for index in plan.order.tolist()]

    assert placed(many, 0) == placed(many, 0)
    assert placed(many, 0) != placed(many, 1)
    assert placed(many[::-1], 0) == placed(many, 0)
    assert placed(many[:30], 0) == [key for key in placed(many, 0) if int(key) < 30]


def test_a_worker_sees_the_saved_plan(many: list[RawSample], tmp_path: Path) -> None:
    plan = plan_of(*many)
    plan.save(tmp_path)
    save_column(tmp_path, "order", plan.order[:7])
    work = WorkList.open(tmp_path, len(plan))
    assert list(work.keys) == list(plan.keys)
    assert list(work.paths) == list(plan.paths)
    np.testing.assert_array_equal(work.source_index, plan.source_index)
    np.testing.assert_array_equal(work.stat, plan.stat)
    np.testing.assert_array_equal(work.order, plan.order[:7])


def test_digest_changes_with_what_is_planned(tmp_path: Path) -> None:
    base = sample("a", label="x", text="t", weight=0)
    digests = [
        plan_of(*given).digest
        for given in (
            [base],
            [replace(base, key="b")],
            [replace(base, split="train")],
            [replace(base, parts={**base.parts, "text": "u"})],
            [replace(base, parts={**base.parts, "label": "y"})],
            [replace(base, parts={**base.parts, "label": 0})],
            [replace(base, parts={**base.parts, "weight": 0.0})],
            [replace(base, parts={**base.parts, "more": 0})],
            [replace(base, parts={"image": b"data", "label": "x", "text": "t", "width": 0})],
            [replace(base, parts={**base.parts, "image": b"atad"})],
            [base, replace(base, key="b")],
            [replace(base, key="b"), base],
        )
    ]
    assert plan_of(base).digest == digests[0]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("field", STAT_FIELDS)
def test_digest_changes_with_each_field_of_the_stat(many: list[RawSample], field: str) -> None:
    plan = plan_of(*many)
    stat = plan.stat.copy()
    stat[-1, STAT_FIELDS.index(field)] += 1
    assert replace(plan, listing=replace(plan.listing, stat=stat)).digest != plan.digest
    assert replace(plan, listing=replace(plan.listing, stat=plan.stat.copy())).digest == plan.digest


def test_a_file_rewritten_with_its_old_size_and_time_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    before, digest = file.stat(), plan_of(sample("a", image=file)).digest
    assert plan_of(sample("a", image=file)).digest == digest
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # until the clock of the file system ticks
        file.write_bytes(b"xyz")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert plan_of(sample("a", image=file)).digest != digest


def test_the_digest_does_not_tell_how_inputs_are_placed(many: list[RawSample]) -> None:
    digests = {plan_of(*many, **keys).digest for keys in ({}, {"seed": 1}, {"order": "source"})}
    assert len(digests) == 1


def test_columns_have_types() -> None:
    plan = plan_of(sample("a", age=3, height=1, name="é"), sample("b", age=4, height=0.5, name=""))
    assert plan.columns["age"].dtype == np.int64
    assert plan.columns["height"].dtype == np.float64
    assert isinstance(plan.columns["name"], TextColumn)
    assert list(plan.columns["name"]) == ["é", ""]


def test_integer_labels_have_no_class_names() -> None:
    plan = plan_of(sample("a", label=7), sample("b", label=-1))
    assert plan.classes is None
    np.testing.assert_array_equal(plan.columns["label"], [7, -1])


def test_the_class_list_of_the_recipe_gives_the_numbers() -> None:
    plan = plan_of(sample("a", label="cat"), sample("b", label="dog"), classes=("cat", "dog"))
    assert plan.columns["label"].tolist() == [0, 1]
    recipe = make_recipe(classes=["dog", "fox", "cat"])
    plan = make_plan(Listed([sample("a", label="cat"), sample("b", label="dog")]), recipe)
    assert plan.columns["label"].tolist() == [2, 0]
    assert plan.classes == ("dog", "fox", "cat")


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "^the source has no samples; nothing to compile"),
        ([sample("a"), sample("b"), sample("a")], "^two inputs have the key 'a'; keys must be unique"),
        ([sample("a", image=3)], "^a: expected a path or bytes as part 'image', got int"),
        ([RawSample("a", "all", {})], "^a: expected a path or bytes as part 'image', got NoneType"),
        ([sample("a", text="x"), sample("b")], "^b: every sample must have the part 'text'"),
        ([sample("a"), sample("b", text="x")], "^b: every sample must have the part 'text'"),
        ([sample("a", mask=b"x")], "^a: part 'mask' must be a number or text, got bytes"),
        ([sample("a", age=3), sample("b", age="x")], "^column 'age': values must be all numbers or all text"),
        ([sample("a", age=2**63)], "^column 'age': integers must fit 64 bits"),
        ([sample("a", label=0.5)], "^labels must be class names or integers"),
    ],
)
def test_a_source_that_contradicts_itself_is_refused(samples: list[RawSample], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        plan_of(*samples)


def test_a_label_outside_of_the_class_list_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"^label 'cow' is not among the classes cat, dog"):
        make_plan(Listed([sample("a", label="cow")]), make_recipe(classes="cat,dog"))


def test_a_missing_file_is_an_error_or_planned(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none\.jpg: no such file"):
        plan_of(sample("a", image=tmp_path / "none.jpg"))
    plan = plan_of(sample("a", image=tmp_path / "none.jpg"), missing="quarantine")
    assert plan.stat[0, 0] == MISSING


def test_only_files_are_planned(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(SourceError, match=r"pipe\.jpg: expected a file, found something else"):
        plan_of(sample("a", image=tmp_path / "pipe.jpg"))


@given(st.integers(1, 300), st.integers(0, 10**12), st.none() | st.integers(1, 10**12))
def test_tasks_cover_all_inputs_evenly(count: int, total: int, shard: int | None) -> None:
    bounds = cut_tasks(count, total, shard)
    sizes = np.diff(bounds)
    assert (bounds[0], bounds[-1]) == (0, count)
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize(
    ("total", "shard", "tasks"),
    [
        (0, None, 1),
        (MIN_SHARD_BYTES, None, 1),
        (64 * MIN_SHARD_BYTES, None, 64),
        (MAX_SHARD_BYTES, None, 64),
        (100 * MAX_SHARD_BYTES, None, 100),
        (1000, 100, 10),
        (1001, 100, 11),
        (1000, 1, 200),
    ],
)
def test_how_many_shards(total: int, shard: int | None, tasks: int) -> None:
    assert len(cut_tasks(200, total, shard)) - 1 == tasks
