"""Permutation: a bijection for any count, the same everywhere, read in any part, as random as a shuffle should be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precompile.loading.sampling import permutation
from precompile.loading.sampling.permutation import SMALL, Permutation, random_below


@pytest.fixture(params=["held", "computed"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Permutation]:
    """Makes small permutations in both ways: the one of small counts, and the one of large."""
    if request.param == "computed":
        monkeypatch.setattr(permutation, "SMALL", 0)
    return Permutation


def chi_square(observed: np.ndarray) -> float:
    """Per degree of freedom, against equal expectations; near 1 for uniform counts."""
    expected = observed.sum() / observed.size
    return float(((observed - expected) ** 2).sum() / expected / (observed.size - 1))


def test_every_small_count_is_a_bijection(make: Callable[..., Permutation]) -> None:
    for count in range(1, 2001):
        numbers = make(count, count % 7, 3)(np.arange(count))
        assert numbers.dtype == np.int64
        assert np.array_equal(np.sort(numbers), np.arange(count))


def test_none_of_nothing(make: Callable[..., Permutation]) -> None:
    assert make(0, 1)(np.empty(0, np.int64)).tolist() == []


@pytest.mark.parametrize("count", [SMALL, SMALL + 1, (1 << 21) - 1, 1_500_001])
def test_a_bijection_around_the_border(count: int) -> None:
    seen = np.zeros(count, bool)
    seen[Permutation(count, 5)(np.arange(count))] = True
    assert seen.all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1 << 62), st.integers(0, 1 << 70), st.integers(0, 1000), st.data())
def test_large_counts_on_samples(count: int, seed: int, epoch: int, data: st.DataObject) -> None:
    count += SMALL
    start = data.draw(st.integers(0, count - 1))
    some = np.random.default_rng(epoch).integers(0, count, 300)
    places = np.unique(np.concatenate([np.arange(start, min(start + 300, count)), some]))
    shuffled = Permutation(count, seed, epoch)
    numbers = shuffled(places)
    assert len(np.unique(numbers)) == len(places)
    assert numbers.min() >= 0
    assert numbers.max() < count
    assert np.array_equal(Permutation(count, seed, epoch)(places[::-1])[::-1], numbers)
    assert [shuffled(places[at : at + 1])[0] for at in range(0, len(places), 50)] == numbers[::50].tolist()


def test_the_same_on_every_machine() -> None:
    assert Permutation(12, 3, 4)(np.arange(12)).tolist() == [8, 3, 0, 2, 10, 6, 4, 5, 7, 9, 11, 1]
    assert Permutation(10**9, 3, 4)(np.array([0, 1, 2, 10**9 - 1])).tolist() == [
        74243701,
        838395501,
        989475608,
        247525406,
    ]
    assert [random_below(1000, 3, 4, number) for number in range(1, 4)] == [829, 475, 454]


def test_keys_give_different_permutations(make: Callable[..., Permutation]) -> None:
    keys = [(0, 0), (0, 1), (1, 0), (0, 0, 1), (0, 0, 2), (0, 0, 1, 1), (2**32, 0), (2**64, 0), (0,), ()]
    orders = {tuple(make(100, *key)(np.arange(100)).tolist()) for key in keys}
    assert len(orders) == len(keys)


def test_every_number_is_equally_likely_at_every_place() -> None:
    table = np.zeros((12, 12))
    for seed in range(6000):
        table[np.arange(12), Permutation(12, seed, 1)(np.arange(12))] += 1
    assert chi_square(table) < 1.4  # 121 degrees of freedom: 1.4 is beyond 3 deviations


@pytest.mark.parametrize("count", [SMALL + 1, 10**9, (1 << 30) + 1])
def test_large_ones_are_uniform(count: int) -> None:
    over_keys = np.array([Permutation(count, 7, epoch)(np.array([0, 1, count // 2])) for epoch in range(4000)])
    for place in range(3):
        assert chi_square(np.bincount(over_keys[:, place] * 32 // count, minlength=32)) < 2.1
    pairs = (over_keys[:, 0] * 8 // count) * 8 + over_keys[:, 1] * 8 // count
    assert chi_square(np.bincount(pairs, minlength=64)) < 1.8
    over_places = Permutation(count, 7, 0)(np.arange(min(count, 200_000)))
    assert chi_square(np.bincount(over_places * 256 // count, minlength=256)) < 1.4
    neighbours = (over_places[1:] * 16 // count) * 16 + over_places[:-1] * 16 // count
    assert chi_square(np.bincount(neighbours, minlength=256)) < 1.4
    assert chi_square(np.bincount(over_places % 64, minlength=64)) < 1.8
