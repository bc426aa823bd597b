"""LengthBatchSampler: every sample once, in batches of similar length within limits, equally many for each rank."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset

from precompile import CompiledDataset, LengthBatchSampler
from precompile.format.schema import FieldSpec
from precompile.loading.sampling.ranks import Rank, Ranks

Written = tuple[Path, list[dict[str, Any]]]

SPEECH = np.random.default_rng(1).integers(300, 3000, 5000)

limits = st.one_of(
    st.fixed_dictionaries({"batch_size": st.integers(1, 20)}),
    st.fixed_dictionaries({"batch_frames": st.integers(1, 300)}),
    st.fixed_dictionaries({"batch_size": st.integers(1, 20), "batch_frames": st.integers(1, 300)}),
)
lengths_of_few = st.lists(st.integers(0, 90), max_size=150)
windows = st.integers(1, 8)


def batches_of(lengths: Any, epoch: int = 0, **options: Any) -> list[list[int]]:
    sampler = LengthBatchSampler(len(lengths), lengths=lengths, **options)
    sampler.set_epoch(epoch)
    return list(sampler)


def all_ranks(lengths: Any, world_size: int, **options: Any) -> list[list[list[int]]]:
    return [batches_of(lengths, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def flat(batches: list[list[int]]) -> list[int]:
    return [position for batch in batches for position in batch]


def test_a_permutation_for_every_count() -> None:
    for count in range(1, 2001):
        lengths = SPEECH[:count]
        limit = {"batch_size": 5 + count % 40} if count % 2 else {"batch_frames": 20_000 + 50 * (count % 500)}
        batches = batches_of(lengths, seed=count, window_batches=5 + count % 50, **limit)
        assert np.array_equal(np.sort(flat(batches)), np.arange(count))


@settings(max_examples=150, deadline=None)
@given(lengths_of_few, limits, windows, st.booleans(), st.integers(0, 3))
def test_batches_keep_their_limits(
    lengths: list[int], limit: dict[str, int], window_batches: int, shuffle: bool, epoch: int
) -> None:
    batches = batches_of(lengths, epoch, window_batches=window_batches, shuffle=shuffle, **limit)
    assert sorted(flat(batches)) == list(range(len(lengths)))
    for batch in batches:
        assert 1 <= len(batch) <= limit.get("batch_size", len(lengths))
        longest = max(lengths[position] for position in batch)
        assert len(batch) * longest <= limit.get("batch_frames", 10**9) or len(batch) == 1


@settings(max_examples=150, deadline=None)
@given(lengths_of_few, limits, windows, st.booleans(), st.integers(1, 6), st.sampled_from(["pad", "drop"]))
def test_ranks_have_equally_many_batches(
    lengths: list[int], limit: dict[str, int], window_batches: int, shuffle: bool, world_size: int, remainder: str
) -> None:
    options = {"window_batches": window_batches, "shuffle": shuffle, "remainder": remainder, **limit}
    ranks = all_ranks(lengths, world_size, **options)
    assert len({len(rank) for rank in ranks}) == 1
    every = Counter(tuple(batch) for rank in ranks for batch in rank)
    seen = Counter(position for batch in every for position in batch)
    assert set(seen.values()) <= {1}  # whatever is repeated is a whole batch
    if remainder == "pad":
        assert sorted(seen) == list(range(len(lengths)))
        assert every.total() - len(every) < world_size
    else:
        assert set(every.values()) <= {1}
        missing = len(lengths) - len(seen)
        assert missing <= (world_size - 1) * limit.get("batch_size", len(lengths))


def test_ranks_have_similar_lengths_at_every_step() -> None:
    ranks = all_ranks(SPEECH, 4, batch_size=16)
    spread = [np.ptp([SPEECH[batch].max() for batch in step]) for step in zip(*ranks)]
    assert np.median(spread) < 50
    assert abs(np.mean([SPEECH[flat(rank)].mean() for rank in ranks[:2]]) - SPEECH.mean()) < 20
    by_rank = [SPEECH[flat(rank)].sum() for rank in ranks]
    assert max(by_rank) / min(by_rank) < 1.01


def test_little_is_padded() -> None:
    for options in ({"batch_size": 32}, {"batch_frames": 32 * 1650}):
        batches = batches_of(SPEECH, **options)
        padded = sum(len(batch) * SPEECH[batch].max() for batch in batches)
        assert SPEECH.sum() / padded > 0.95
    full = [len(batch) * SPEECH[batch].max() / (32 * 1650) for batch in batches]
    assert np.mean(full) > 0.9


def test_steps_of_a_window_are_shuffled() -> None:
    longest = [SPEECH[batch].max() for batch in batches_of(SPEECH, batch_size=16, window_batches=1000)]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.25
    unshuffled = batches_of(SPEECH, batch_size=16, window_batches=1000, shuffle=False)
    assert [SPEECH[batch].max() for batch in unshuffled] == sorted(longest, reverse=True)


def test_without_shuffle_windows_follow_each_other_in_every_epoch() -> None:
    options: dict[str, Any] = {"batch_size": 10, "window_batches": 5, "shuffle": False}
    batches = batches_of(SPEECH[:500], **options)
    for window in range(10):
        assert sorted(flat(batches[5 * window : 5 * window + 5])) == list(range(50 * window, 50 * window + 50))
    assert batches_of(SPEECH[:500], 3, **options) == batches


def test_samples_meet_others_in_other_epochs() -> None:
    equal = np.full(400, 7)
    epochs = [batches_of(equal, epoch, batch_size=4) for epoch in range(3)]
    groups = [{frozenset(batch) for batch in epoch} for epoch in epochs]
    assert not groups[0] & groups[1]
    assert not groups[1] & groups[2]
    assert batches_of(equal, 1, batch_size=4) == epochs[1]
    assert batches_of(equal, 1, batch_size=4, seed=1) != epochs[1]


@settings(max_examples=150, deadline=None)
@given(lengths_of_few, limits, windows, st.integers(1, 4), st.sampled_from(["pad", "drop"]), st.booleans(), st.data())
def test_resumed_anywhere_it_gives_the_rest(
    lengths: list[int], limit: dict[str, int], window_batches: int, world_size: int, remainder: str, shuffle: bool,
    data: st.DataObject,
) -> None:  # fmt: skip
    options = {"lengths": lengths, "window_batches": window_batches, "shuffle": shuffle, "seed": 4,
               "world_size": world_size, "remainder": remainder, **limit}  # fmt: skip
    samplers = [LengthBatchSampler(len(lengths), rank=rank, **options) for rank in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(2)
    epochs = [(list(sampler), list(sampler)) for sampler in samplers]
    consumed = data.draw(st.integers(0, len(epochs[0][0])))
    samplers[0].set_epoch(2)
    drawn = iter(samplers[0])
    for _ in range(consumed):
        next(drawn)
    state = json.loads(json.dumps(samplers[0].state_dict()))
    assert state["consumed"] == consumed
    for rank, (epoch, following) in enumerate(epochs):
        other = LengthBatchSampler(len(lengths), rank=rank, **options)
        other.load_state_dict(state)
        assert len(other) == len(epoch) - consumed
        begun = other.begin()
        assert [begun.order.batch(number).tolist() for number in range(len(begun.order))] == epoch[consumed:]
        assert list(other) == following


def test_any_batch_at_any_time() -> None:
    order = LengthBatchSampler(5000, lengths=SPEECH, batch_frames=9000, rank=1, world_size=3).begin().order
    batches = [order.batch(number) for number in range(len(order))]
    assert all(batch.dtype == np.int64 for batch in batches)
    for number in np.random.default_rng(0).permutation(len(order)).tolist():
        assert np.array_equal(order.batch(number), batches[number])
        following = batches[number + 1].tolist() if number + 1 < len(order) else []
        assert order.ahead(number).tolist() == following
    order.batch(3)[:] = -1
    assert np.array_equal(order.batch(3), batches[3])
    for number in (-1, len(order)):
        with pytest.raises(IndexError, match=f"a batch number must be from 0 to {len(order) - 1}, got {number}"):
            order.batch(number)


@pytest.mark.parametrize("world_size", [1, 3])
def test_the_last_samples_that_fill_no_batch_are_dropped(world_size: int) -> None:
    lengths = SPEECH[:1000]
    left_out = []
    for epoch in range(20):
        ranks = [
            batches_of(
                lengths, epoch, batch_size=64, drop_last=True, remainder="drop", rank=rank, world_size=world_size
            )
            for rank in range(world_size)
        ]
        assert {len(batch) for rank in ranks for batch in rank} == {64}
        assert [len(rank) for rank in ranks] == [15 // world_size] * world_size
        left_out.append(set(range(1000)) - {position for rank in ranks for position in flat(rank)})
        assert len(left_out[-1]) == 1000 - 15 * 64
    assert len(set.union(*left_out)) > 450  # not the shortest each time


def test_lengths_of_a_field(spectrograms: Written) -> None:
    root, samples = spectrograms
    dataset = CompiledDataset(root)
    lengths = [sample["spectrogram"].shape[1] for sample in samples]
    expected = batches_of(lengths, batch_frames=30)
    assert list(LengthBatchSampler(dataset, batch_frames=30)) == expected
    assert list(LengthBatchSampler(dataset, batch_frames=30, field="spectrogram")) == expected
    chosen = [9, -1, 4, 4, 17]
    part = LengthBatchSampler(Subset(dataset, chosen), batch_frames=12)
    assert list(part) == batches_of([lengths[number] for number in chosen], batch_frames=12)
    other = [1 + number for number in range(30)]
    assert list(LengthBatchSampler(dataset, batch_frames=30, lengths=other)) == batches_of(other, batch_frames=30)


def test_lengths_of_a_split_and_of_two_axes(tmp_path: Path, write_dataset: Any) -> None:
    fields = (FieldSpec("waveform", "float32", (1, 5)), FieldSpec("image", "uint8", (3, None, None)),
              FieldSpec("mask", "uint8", (None,)))  # fmt: skip
    samples = write_dataset(tmp_path / "two.pc", fields, 60, splits={"train": 40, "val": 20})
    val = CompiledDataset(tmp_path / "two.pc", split="val")
    sizes = [sample["image"].shape[1] * sample["image"].shape[2] for sample in samples[40:]]
    assert list(LengthBatchSampler(val, batch_frames=200)) == batches_of(sizes, batch_frames=200)
    masks = [len(sample["mask"]) for sample in samples[40:]]
    assert list(LengthBatchSampler(val, batch_size=3, field="mask")) == batches_of(masks, batch_size=3)
    only_mask = CompiledDataset(tmp_path / "two.pc", split="val", fields=("mask", "waveform"))
    assert list(LengthBatchSampler(only_mask, batch_size=3)) == batches_of(masks, batch_size=3)
    with pytest.raises(ValueError, match="size of field waveform does not vary: choose from image, mask"):
        LengthBatchSampler(val, batch_size=3, field="waveform")
    with pytest.raises(ValueError, match="no field 'sound'; choose from waveform, image, mask"):
        LengthBatchSampler(val, batch_size=3, field="sound")


def test_a_dataset_of_one_shape(images: Written) -> None:
    dataset = CompiledDataset(images[0])
    with pytest.raises(ValueError, match=r"images.pc: needs a field whose size varies, and no field does; .* lengths="):
        LengthBatchSampler(dataset, batch_frames=100)
    assert sorted(flat(list(LengthBatchSampler(dataset, batch_size=7, lengths=range(50))))) == list(range(50))


def test_another_dataset_needs_lengths() -> None:
    with pytest.raises(TypeError, match="dataset must be a CompiledDataset or a Subset of one, got list"):
        LengthBatchSampler([1, 2, 3], batch_size=2)
    assert sorted(flat(list(LengthBatchSampler(["a", "b", "c"], batch_size=2, lengths=[4, 5, 6])))) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give batch_size, batch_frames or both; got neither"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got batch_size=0"),
        ({"batch_frames": 2.5}, "batch_frames must be an integer of at least 1, got batch_frames=2.5"),
        (
            {"batch_size": 2, "window_batches": 0},
            "window_batches must be an integer of at least 1, got window_batches=0",
        ),
        ({"batch_frames": 9, "drop_last": True}, "drop_last goes with batch_size alone"),
        ({"batch_size": 2, "field": "image"}, "field and lengths exclude each other, got lengths and field='image'"),
        ({"batch_size": 2, "lengths": [1, 2]}, r"lengths must be 3 whole numbers, got int64 of shape \(2,\)"),
        ({"batch_size": 2, "lengths": [1.0, 2, 3]}, r"lengths must be 3 whole numbers, got float64 of shape \(3,\)"),
        ({"batch_size": 2, "lengths": [1, -2, 3]}, "lengths must be at least 0, got -2"),
        ({"batch_size": 2, "seed": -1}, "seed must be an integer of at least 0, got seed=-1"),
        ({"batch_size": 2, "rank": 3}, "rank and world_size go together, got rank=3 and world_size=None"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LengthBatchSampler(3, **{"lengths": [1, 2, 3], **options})


def test_a_state_of_another_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def sampler(**options: Any) -> LengthBatchSampler:
        return LengthBatchSampler(5000, **{"lengths": SPEECH, "batch_size": 8, **options})

    state = sampler().state_dict()
    for options, message in [
        ({"batch_size": 9}, "batch_size is 9 here, 8 in the state"),
        ({"batch_frames": 9000}, "batch_frames is 9000 here, None in the state"),
        ({"rank": 1, "world_size": 2}, "world_size is 2 here, 1 in the state"),
        ({"lengths": SPEECH[::-1]}, r"lengths is \d+ here, \d+ in the state"),
        ({"window_batches": 3}, "window_batches is 3 here, 100 in the state"),
    ]:
        with pytest.raises(ValueError, match=f"does not fit this sampler: {message}"):
            sampler(**options).load_state_dict(state)
    resumed = sampler()
    resumed.load_state_dict(state)
    monkeypatch.setattr(Ranks, "current", lambda self: Rank(0, 2, "pad"))
    with pytest.raises(ValueError, match="world_size is 2 here, 1 in the state"):
        next(iter(resumed))
