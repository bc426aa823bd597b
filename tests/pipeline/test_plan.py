from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precompile.errors import RecipeError, SourceError
from precompile.format.text import TextColumn
from precompile.pipeline.plan import MAX_SHARD_BYTES, MIN_SHARD_BYTES, MISSING, Plan, WorkList, cut_tasks, make_plan
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
    work = WorkList.open(tmp_path, len(plan))
    assert list(work.keys) == list(plan.keys)
    for name in ("source_index", "stat", "order"):
        np.testing.assert_array_equal(getattr(work, name), getattr(plan, name))


def test_digest_changes_with_what_is_planned(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    base = sample("a", image=file, label="x", text="t")
    digests = [
        plan_of(given).digest
        for given in (
            base,
            replace(base, key="b"),
            replace(base, split="train"),
            replace(base, parts={**base.parts, "text": "u"}),
            replace(base, parts={**base.parts, "label": "y"}),
        )
    ]
    assert plan_of(base).digest == digests[0]
    os.utime(file, ns=(1, 1))
    digests.append(plan_of(base).digest)
    file.write_bytes(b"abcd")
    os.utime(file, ns=(1, 1))
    digests.append(plan_of(base).digest)
    assert len(set(digests)) == len(digests)


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


@pytest.fixture(scope="module")
def plan_with() -> Callable[[int], Plan]:
    base = plan_of(sample("a"))
    return lambda count: replace(base, keys=TextColumn.of(map(str, range(count))))


@given(st.integers(1, 300), st.integers(0, 10**12), st.none() | st.integers(1, 10**12))
def test_tasks_cover_all_inputs_evenly(
    plan_with: Callable[[int], Plan], count: int, total: int, shard: int | None
) -> None:
    bounds = cut_tasks(plan_with(count), total, shard)
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
def test_how_many_shards(plan_with: Callable[[int], Plan], total: int, shard: int | None, tasks: int) -> None:
    assert len(cut_tasks(plan_with(200), total, shard)) - 1 == tasks
