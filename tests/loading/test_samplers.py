"""ShuffleSampler, and what all samplers share: epochs, ranks, and going on in the middle of an epoch."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precompile import ShuffleSampler
from precompile.loading.sampling.ranks import Ranks

remainders = st.sampled_from(["pad", "drop"])


def epoch_of(sampler: ShuffleSampler) -> np.ndarray:
    order = sampler.begin().order
    return order.read(0, len(order))


def all_ranks(count: int, world_size: int, **options: Any) -> list[np.ndarray]:
    return [epoch_of(ShuffleSampler(count, rank=rank, world_size=world_size, **options)) for rank in range(world_size)]


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(state))
    return loaded


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_permutation_for_every_count(shuffle: bool) -> None:
    for count in range(1, 2001):
        order = epoch_of(ShuffleSampler(count, seed=count, shuffle=shuffle))
        assert order.dtype == np.int64
        assert np.array_equal(np.sort(order) if shuffle else order, np.arange(count))


@settings(max_examples=40, deadline=None)
@given(st.integers(1 << 20, 1 << 36), st.integers(1, 9), st.integers(0, 99), remainders, st.data())
def test_large_counts_on_samples(count: int, world_size: int, seed: int, remainder: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, count // world_size - 600))
    parts = []
    for rank in range(world_size):
        order = ShuffleSampler(count, seed=seed, rank=rank, world_size=world_size, remainder=remainder).begin().order
        assert len(order) == (-(-count // world_size) if remainder == "pad" else count // world_size)
        parts.append(order.read(start, start + 600))
    positions = np.concatenate(parts)
    assert len(np.unique(positions)) == len(positions)
    assert 0 <= positions.min() <= positions.max() < count


@given(st.integers(0, 200), st.integers(1, 30), st.booleans(), remainders)
def test_ranks_are_equally_long_and_share_the_set(count: int, world_size: int, shuffle: bool, remainder: str) -> None:
    alone = epoch_of(ShuffleSampler(count, seed=5, shuffle=shuffle))
    ranks = all_ranks(count, world_size, seed=5, shuffle=shuffle, remainder=remainder)
    dealt = np.stack(ranks, axis=1).ravel()  # equally long, or stack raises
    if remainder == "drop":
        assert dealt.tolist() == alone[: count // world_size * world_size].tolist()
    else:
        total = -(-count // world_size) * world_size
        assert dealt.tolist() == np.resize(alone, total).tolist()  # repeats from the beginning


@pytest.mark.parametrize("count", [10_000, (1 << 20) + 10_000])
@settings(max_examples=40, deadline=None)
@given(start=st.integers(0, 10_000), length=st.integers(0, 6000), world_size=st.integers(1, 3))
def test_any_part_is_that_part_of_the_whole(count: int, start: int, length: int, world_size: int) -> None:
    order = ShuffleSampler(count, rank=world_size - 1, world_size=world_size).begin().order
    start, stop = min(start, len(order)), min(start + length, len(order))
    part = order.read(start, stop)
    assert part[::97].tolist() == [order.read(at, at + 1).item() for at in range(start, stop, 97)]
    halves = [order.read(start, (start + stop) // 2), order.read((start + stop) // 2, stop)]
    assert np.array_equal(np.concatenate(halves), part)
    assert np.array_equal(order.ahead(start, stop), order.read(stop, min(2 * stop - start, len(order))))
    part[:] = -1
    assert np.array_equal(order.read(start, stop), np.concatenate(halves))


def test_a_part_outside_is_an_error() -> None:
    order = ShuffleSampler(10).begin().order
    for start, stop in [(-1, 3), (0, 11), (5, 4)]:
        with pytest.raises(IndexError, match=f"expected 0 <= start <= stop <= 10, got start={start} and stop={stop}"):
            order.read(start, stop)


def test_epochs_differ_and_set_epoch_repeats() -> None:
    sampler = ShuffleSampler(100, seed=3)
    epochs = [list(sampler) for _ in range(4)]
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert all(type(position) is int for position in epochs[0])
    sampler.set_epoch(1)
    assert [list(sampler), list(sampler)] == epochs[1:3]
    assert list(ShuffleSampler(100, seed=4)) != epochs[0]
    again = ShuffleSampler(range(100), seed=3)
    assert [list(again) for _ in range(4)] == epochs


def test_the_numbers_of_epochs() -> None:
    sampler = ShuffleSampler(5)
    assert [sampler.begin().number for _ in range(3)] == [0, 1, 2]
    sampler.set_epoch(7)
    assert [sampler.begin().number for _ in range(2)] == [7, 8]


@given(st.integers(1, 150), st.integers(1, 5), st.integers(0, 3), remainders, st.booleans(), st.data())
def test_resumed_anywhere_it_gives_the_rest(
    count: int, world_size: int, epoch: int, remainder: str, shuffle: bool, data: st.DataObject
) -> None:
    options: dict[str, Any] = {"seed": 9, "shuffle": shuffle, "world_size": world_size, "remainder": remainder}
    samplers = [ShuffleSampler(count, rank=rank, **options) for rank in range(world_size)]
    whole = []
    for sampler in samplers:
        sampler.set_epoch(epoch)
        whole.append((list(sampler), list(sampler)))
    consumed = data.draw(st.integers(0, len(samplers[0])))
    samplers[0].set_epoch(epoch)
    drawn = iter(samplers[0])
    assert [next(drawn) for _ in range(consumed)] == whole[0][0][:consumed]
    state = through_json(samplers[0].state_dict())
    for rank in range(world_size):  # the state of one rank serves all
        sampler = ShuffleSampler(count, rank=rank, **options)
        sampler.load_state_dict(state)
        assert len(sampler) == len(whole[rank][0]) - consumed
        assert sampler.state_dict() == state
        assert list(sampler) == whole[rank][0][consumed:]
        assert len(sampler) == len(whole[rank][0])
        assert list(sampler) == whole[rank][1]


@given(st.integers(1, 150), st.lists(st.integers(1, 7), min_size=2, max_size=4), remainders, st.data())
def test_resumed_with_other_numbers_of_ranks(
    count: int, world_sizes: list[int], remainder: str, data: st.DataObject
) -> None:
    whole = epoch_of(ShuffleSampler(count, seed=2))
    state = ShuffleSampler(count, seed=2).state_dict()
    read: list[int] = []
    for number, world_size in enumerate(world_sizes):
        is_last = number == len(world_sizes) - 1
        samplers = [
            ShuffleSampler(count, seed=2, rank=rank, world_size=world_size, remainder=remainder)
            for rank in range(world_size)
        ]
        epochs = []
        for sampler in samplers:
            sampler.load_state_dict(state)
            epochs.append(sampler.begin())
        length = len(epochs[0].order)
        consumed = length if is_last else data.draw(st.integers(0, length))
        read += np.stack([epoch.order.read(0, consumed) for epoch in epochs], axis=1).ravel().tolist()
        state = through_json(samplers[-1].state(epochs[-1], consumed))
        assert state["consumed"] == len(read)
    if remainder == "drop":
        assert read == whole[: len(read)].tolist()
        assert len(read) > count - world_sizes[-1]
    else:
        assert read == np.resize(whole, len(read)).tolist()
        assert count <= len(read) < count + max(world_sizes)


def test_set_epoch_keeps_the_place_of_the_restored_epoch_alone() -> None:
    sampler = ShuffleSampler(20)
    epochs = [list(sampler) for _ in range(3)]
    sampler.set_epoch(1)
    state = sampler.state(sampler.begin(), 5)
    for number, expected in [(1, epochs[1][5:]), (2, epochs[2]), (0, epochs[0])]:
        sampler.load_state_dict(state)
        sampler.set_epoch(number)
        assert list(sampler) == expected
    sampler.load_state_dict(state)
    list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) == epochs[1]


def test_a_state_of_the_end_leaves_nothing_of_its_epoch() -> None:
    sampler = ShuffleSampler(20)
    first = list(sampler)
    state = sampler.state_dict()
    assert state["consumed"] == len(first)
    second = list(sampler)
    sampler.load_state_dict(state)
    assert list(sampler) == []
    assert list(sampler) == second


def test_the_state_of_what_was_drawn_and_of_what_was_consumed() -> None:
    sampler = ShuffleSampler(50, rank=1, world_size=2)
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["consumed"]) == (0, 0)
    abandoned = iter(sampler)
    next(abandoned)
    drawn = iter(sampler)
    for _ in range(7):
        next(drawn)
    next(abandoned)  # of an epoch that is no longer in progress
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["consumed"]) == (1, 14)
    assert sampler.state_dict(3)["consumed"] == 6
    assert sampler.state_dict(0)["consumed"] == 0
    assert next(drawn) == epoch_of_number(sampler, 1)[7]


def epoch_of_number(sampler: ShuffleSampler, number: int) -> np.ndarray:
    other = ShuffleSampler(sampler.count, seed=sampler.seed, rank=1, world_size=2)
    other.set_epoch(number)
    return epoch_of(other)


def test_a_state_stays_as_it_was() -> None:
    sampler = ShuffleSampler(50)
    epoch = sampler.begin()
    states = [sampler.state(epoch, consumed) for consumed in (3, 9, 3)]
    assert states[0] == states[2] != states[1]
    sampler.load_state_dict(states[0])
    resumed = sampler.begin()
    assert resumed.start == 3
    assert sampler.state(resumed, 6) == states[1]


def test_more_than_there_was_cannot_be_consumed() -> None:
    sampler = ShuffleSampler(50)
    with pytest.raises(ValueError, match="no epoch has begun, so consumed must be 0 or None, got consumed=4"):
        sampler.state_dict(4)
    epoch = sampler.begin()
    with pytest.raises(ValueError, match="consumed must be at most 50, the length of the epoch, got consumed=51"):
        sampler.state(epoch, 51)
    with pytest.raises(ValueError, match="consumed must be an integer of at least 0, got consumed=-1"):
        sampler.state_dict(-1)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 1}, "seed is 0 here, 1 in the state"),
        ({"count": 49}, "count is 50 here, 49 in the state"),
        ({"shuffle": False, "seed": 2}, "seed is 0 here, 2 in the state; shuffle is True here, False in the state"),
    ],
)
def test_a_state_of_another_sampler_is_refused(other: dict[str, Any], message: str) -> None:
    state = ShuffleSampler(other.pop("count", 50), **other).state_dict()
    sampler = ShuffleSampler(50)
    with pytest.raises(ValueError, match=f"the state does not fit this sampler: {message}"):
        sampler.load_state_dict(state)
    assert list(sampler) == list(ShuffleSampler(50))


def test_what_is_no_state_is_refused() -> None:
    sampler = ShuffleSampler(50)
    state = sampler.state_dict()
    with pytest.raises(ValueError, match="the state lacks consumed, seed; give one that state_dict gave"):
        sampler.load_state_dict({name: value for name, value in state.items() if name not in ("consumed", "seed")})
    with pytest.raises(ValueError, match="sampler is 'ShuffleSampler' here, None in the state"):
        sampler.load_state_dict({"epoch": 3})
    with pytest.raises(ValueError, match="must be a dict that state_dict gave, got list"):
        sampler.load_state_dict([1, 2])  # type: ignore[arg-type]
    for name, value in [("epoch", -1), ("consumed", 1.5)]:
        with pytest.raises(ValueError, match=f"{name} must be an integer of at least 0, got {name}={value}"):
            sampler.load_state_dict({**state, name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed must be an integer of at least 0, got seed=-1"),
        ({"seed": 1.5}, "seed must be an integer of at least 0, got seed=1.5"),
        ({"seed": True}, "seed must be an integer of at least 0, got seed=True"),
        ({"rank": 1}, "rank and world_size go together, got rank=1 and world_size=None"),
        ({"world_size": 2}, "rank and world_size go together, got rank=None and world_size=2"),
        ({"rank": 2, "world_size": 2}, "rank must be below world_size, got rank=2 and world_size=2"),
        ({"rank": -1, "world_size": 2}, "rank must be an integer of at least 0, got rank=-1"),
        ({"rank": 0, "world_size": 0}, "world_size must be an integer of at least 1, got world_size=0"),
        ({"remainder": "keep"}, "remainder must be one of pad, drop, got remainder='keep'"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShuffleSampler(10, **options)


@pytest.mark.parametrize("count", [-1, 2.5, None])
def test_a_wrong_number_of_samples(count: Any) -> None:
    with pytest.raises(ValueError, match=f"the number of samples must be an integer of at least 0, got .*={count}"):
        ShuffleSampler(count)


@pytest.mark.parametrize("epoch", [-1, "1", 0.0])
def test_a_wrong_epoch(epoch: Any) -> None:
    with pytest.raises(ValueError, match=f"epoch must be an integer of at least 0, got epoch={epoch!r}"):
        ShuffleSampler(10).set_epoch(epoch)


def test_numpy_integers_are_integers() -> None:
    sampler = ShuffleSampler(np.int64(10), seed=np.int32(3), rank=np.int64(0), world_size=np.int64(2))
    sampler.set_epoch(np.int64(4))
    assert through_json(sampler.state_dict()) == sampler.state_dict()
    expected = ShuffleSampler(10, seed=3, rank=0, world_size=2)
    expected.set_epoch(4)
    assert list(sampler) == list(expected)


def test_without_torch_distributed_there_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Ranks().current() == Ranks(0, 1).current()
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    monkeypatch.delattr(torch.distributed, "is_initialized")
    assert Counter(list(ShuffleSampler(10))) == Counter(range(10))


def test_the_rank_is_asked_for_when_an_epoch_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = ShuffleSampler(10, shuffle=False)
    assert len(sampler) == 10
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert len(sampler) == 5
    assert list(sampler) == [1, 3, 5, 7, 9]
    assert list(ShuffleSampler(10, shuffle=False, rank=0, world_size=1)) == list(range(10))


def test_a_billion_samples_cost_no_memory() -> None:
    tracemalloc.start()
    sampler = ShuffleSampler(10**9, rank=3, world_size=8)
    order = sampler.begin().order
    for start in (0, 12345, len(order) - 4096):
        assert len(order.read(start, start + 4096)) == 4096
        order.ahead(start, start + 256)
    positions = iter(sampler)
    for _ in range(10_000):
        next(positions)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_pickled_sampler_goes_on_where_it_was() -> None:
    sampler = ShuffleSampler(100, seed=1)
    drawn = iter(sampler)
    next(drawn)
    copy = pickle.loads(pickle.dumps(sampler))
    assert copy.state_dict() == sampler.state_dict()
    assert list(copy) == list(sampler)


def test_every_position_is_equally_likely_in_every_place() -> None:
    table = np.zeros((10, 10))
    for seed in range(3000):
        table[np.arange(10), list(ShuffleSampler(10, seed=seed))] += 1
    assert ((table - 300) ** 2 / 300).sum() < 81 + 4 * np.sqrt(2 * 81)
