from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precompile.pipeline.choose import choose

samples = st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 6)), min_size=1, max_size=60)


@given(samples, st.integers(1, 70))
def test_classes_come_first_and_then_shards(samples: list[tuple[int, int]], count: int) -> None:
    shard, label = np.array(samples).T
    rows = choose(shard, label, count)
    assert len(rows) == min(count, len(samples))
    assert (np.diff(rows) > 0).all()
    assert rows.tolist() == choose(shard, label, count).tolist()
    classes, shards = len(set(label.tolist())), len(set(shard.tolist()))
    assert len(set(label[rows].tolist())) == min(count, classes)
    if count >= classes + shards:
        assert set(shard[rows].tolist()) == set(shard.tolist())


@pytest.mark.parametrize("label", [None, np.zeros(90, np.int64)])
def test_without_classes_it_is_shards_that_are_spread_over(label: np.ndarray | None) -> None:
    shard = np.repeat(np.arange(9), 10)
    assert len(set(shard[choose(shard, label, 10)].tolist())) == 9


def test_classes_are_chosen_from_in_turn() -> None:
    label = np.array([0] * 1000 + [1] * 10 + [2] * 10)
    rows = choose(np.arange(1020) % 4, label, 30)
    assert np.bincount(label[rows]).tolist() == [10, 10, 10]


def test_all_is_all() -> None:
    shard = np.arange(5)
    for count in (None, 5, 9):
        assert choose(shard, shard, count).tolist() == [0, 1, 2, 3, 4]
    assert choose(shard[:0], None, 3).tolist() == []
