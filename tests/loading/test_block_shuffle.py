"""BlockShuffleSampler: a permutation that reads long runs of the disk and mixes nearly as well as a full shuffle."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset

from precompile import BlockShuffleSampler, CompiledDataset, ShuffleSampler
from precompile.format.generation import generation_dir
from precompile.format.schema import FieldSpec
from precompile.loading.sampling import storage_order as storage_module
from precompile.loading.sampling.block_order import BlockOrder, ShuffledRuns
from precompile.loading.sampling.orders import Order
from precompile.loading.sampling.ranks import Rank, Ranks
from precompile.loading.sampling.storage_order import StorageOrder, storage_order

PITCH = 64
"""Bytes from record to record in the datasets here."""
TINY = (FieldSpec("value", "uint8", (8,)),)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, write_dataset: Callable[..., Any]) -> CompiledDataset:
    """2000 samples in 5 shards, placed at random."""
    root = tmp_path_factory.mktemp("mixed") / "mixed.pc"
    write_dataset(root, TINY, 2000, splits={"train": 1500, "val": 500}, num_shards=5)
    return CompiledDataset(root)


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory, write_dataset: Callable[..., Any]) -> CompiledDataset:
    """32,768 samples in 8 shards, which lie on disk as they follow each other in the source."""
    root = tmp_path_factory.mktemp("ordered") / "ordered.pc"
    write_dataset(root, TINY, 32768, num_shards=8)
    path = generation_dir(root, 1) / "record.npy"
    record = np.load(path)
    np.save(path, record[np.lexsort((record[:, 1], record[:, 0]))])
    return CompiledDataset(root)


def storage_ranks(dataset: CompiledDataset) -> np.ndarray:
    """The place of every sample in storage order, found the simple way."""
    record = dataset.stored.index.record
    ranks = np.empty(len(record), np.int64)
    ranks[np.lexsort((record[:, 1], record[:, 0]))] = np.arange(len(record))
    return ranks


def order_of(dataset: Any, epoch: int = 0, **options: Any) -> Order:
    sampler = BlockShuffleSampler(dataset, **options)
    sampler.set_epoch(epoch)
    return sampler.begin().order


def whole(order: Order) -> np.ndarray:
    return order.read(0, len(order))


def num_runs(places: np.ndarray) -> int:
    """How many requests these places are, when neighbours are merged."""
    return 1 + int((np.diff(np.sort(places)) > 1).sum())


def test_a_permutation_for_every_count(mixed: CompiledDataset) -> None:
    for count in range(1, 2001):
        run, num_windows = 1 + count % 23, 1 + count % 7
        window_runs = max(1, count // run // num_windows)
        part = Subset(mixed, range(count))
        order = whole(order_of(part, seed=count, run_bytes=PITCH * run, window_runs=window_runs))
        assert order.dtype == np.int64
        assert np.array_equal(np.sort(order), np.arange(count))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 10**10), st.integers(1, 9000), st.integers(1, 600), st.integers(1, 4),
    st.sampled_from(["pad", "drop"]), st.data(),
)  # fmt: skip
def test_large_counts_on_samples(
    count: int, run: int, window_runs: int, world_size: int, remainder: str, data: st.DataObject
) -> None:
    runs = ShuffledRuns(StorageOrder(count, None, 1.0), run, (3, 4))
    orders = [BlockOrder(runs, window_runs, (3, 4), Rank(rank, world_size, remainder), 0) for rank in range(world_size)]
    length = len(orders[0])
    assert length == (-(-count // world_size) if remainder == "pad" else count // world_size)
    start = data.draw(st.integers(0, length))
    positions = [order.read(start, min(start + 500, length)) for order in orders]
    assert all(len(np.unique(part)) == len(part) for part in positions)
    together = np.concatenate(positions)
    assert len(together) - len(np.unique(together)) <= (world_size if remainder == "pad" else 0)
    assert ((together >= 0) & (together < count)).all()


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(1, 12), st.integers(1, 40), st.integers(1, 9), st.sampled_from(["pad", "drop"]))
def test_ranks_are_equally_long_and_share_the_set(
    mixed: CompiledDataset, count: int, world_size: int, run: int, window_runs: int, remainder: str
) -> None:
    options = {"run_bytes": PITCH * run, "window_runs": window_runs, "remainder": remainder, "world_size": world_size}
    part = Subset(mixed, range(count))
    ranks = [whole(order_of(part, rank=rank, **options)).tolist() for rank in range(world_size)]
    assert len({len(rank) for rank in ranks}) == 1
    seen = Counter(position for rank in ranks for position in rank)
    if remainder == "drop":
        assert set(seen.values()) <= {1}
        assert count - world_size < len(seen) <= count
    else:
        assert sorted(seen) == list(range(count))
        assert seen.total() == -(-count // world_size) * world_size


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 3), st.integers(1, 40), st.integers(1, 9), st.integers(0, 3), st.data())
def test_resumed_anywhere_it_gives_the_rest(
    mixed: CompiledDataset, count: int, world_size: int, run: int, window_runs: int, epoch: int, data: st.DataObject
) -> None:
    options = {"run_bytes": PITCH * run, "window_runs": window_runs, "world_size": world_size, "rank": world_size - 1}
    sampler = BlockShuffleSampler(Subset(mixed, range(count)), **options)
    sampler.set_epoch(epoch)
    begun = sampler.begin()
    expected, following = whole(begun.order), list(sampler)
    consumed = data.draw(st.integers(0, len(expected)))
    other = BlockShuffleSampler(Subset(mixed, range(count)), **options)
    other.load_state_dict(json.loads(json.dumps(sampler.state(begun, consumed))))
    other.set_epoch(epoch)
    assert len(other) == len(expected) - consumed
    resumed = other.begin()
    assert whole(resumed.order).tolist() == expected[consumed:].tolist()
    more = data.draw(st.integers(0, len(resumed.order)))
    other.load_state_dict(other.state(resumed, more))
    assert list(other) == expected[consumed + more :].tolist()
    assert list(other) == following


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2000), st.integers(0, 2000))
def test_any_part_is_that_part_of_the_whole(mixed: CompiledDataset, start: int, stop: int) -> None:
    start, stop = sorted((start, stop))
    order = order_of(mixed, run_bytes=PITCH * 7, window_runs=40)
    assert np.array_equal(order.read(start, stop), whole(order)[start:stop])


def test_epochs_differ_and_set_epoch_repeats(mixed: CompiledDataset) -> None:
    sampler = BlockShuffleSampler(mixed, run_bytes=PITCH * 8, window_runs=16, seed=2)
    epochs = [list(sampler) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    sampler.set_epoch(1)
    assert list(sampler) == epochs[1]
    assert list(BlockShuffleSampler(mixed, run_bytes=PITCH * 8, window_runs=16, seed=2)) == epochs[0]
    assert list(BlockShuffleSampler(mixed, run_bytes=PITCH * 8, window_runs=16, seed=3)) != epochs[0]


def test_a_window_reads_whole_runs(mixed: CompiledDataset) -> None:
    ranks = storage_ranks(mixed)
    order = whole(order_of(mixed, run_bytes=PITCH * 10, window_runs=20))
    for start in range(0, 2000, 200):
        places = ranks[order[start : start + 200]]
        assert num_runs(places) <= 21  # one more where the storage order's end is met
        assert num_runs(places) > 5
        assert num_runs(places[:20]) > 10  # mixed within


def test_another_epoch_cuts_other_runs(ordered: CompiledDataset) -> None:
    firsts = set()
    for epoch in range(8):
        places = np.sort(order_of(ordered, epoch, run_bytes=PITCH * 1000, window_runs=1).read(0, 1000))
        assert num_runs(places) <= 2
        firsts.add(int(places[0]) % 1000)
    assert len(firsts) > 4


@pytest.mark.parametrize("consumed", [0, 100, 555, 1990])
@pytest.mark.parametrize("batch", [64, 256])
def test_what_is_asked_ahead(mixed: CompiledDataset, consumed: int, batch: int) -> None:
    ranks = storage_ranks(mixed)
    sampler = BlockShuffleSampler(mixed, run_bytes=PITCH * 10, window_runs=30)
    sampler.load_state_dict(sampler.state(sampler.begin(), consumed))
    order = sampler.begin().order
    asked: list[int] = []
    for start in range(0, len(order), batch):
        stop = min(start + batch, len(order))
        ahead = order.ahead(start, stop)
        assert np.array_equal(ranks[ahead], np.sort(ranks[ahead]))
        assert (
            start == 0 or num_runs(ranks[ahead]) <= len(ahead) / 10 + 3
        )  # a run cut at each end, and the storage's end
        asked += ahead.tolist()
        assert set(order.read(start, stop).tolist()) <= set(asked)
    assert sorted(asked) == sorted(whole(order).tolist())  # each once


def test_a_window_is_asked_for_while_the_one_before_is_read(ordered: CompiledDataset) -> None:
    order = order_of(ordered, run_bytes=PITCH * 8, window_runs=512)
    first = order.ahead(0, 256)
    assert len(first) == 4096 + 256
    later = np.concatenate([order.ahead(start, start + 256) for start in range(256, 4096, 256)])
    asked = np.concatenate([first, later])
    assert np.array_equal(np.sort(asked), np.sort(order.read(0, 8192)))
    assert sum(num_runs(order.ahead(start, start + 256)) for start in range(256, 4096, 256)) <= 15 * 33


def class_entropy(order: np.ndarray, labels: np.ndarray, batch: int = 256) -> float:
    """Bits, the mean over batches."""
    found = []
    for start in range(0, len(order) - batch + 1, batch):
        share = np.bincount(labels[order[start : start + batch]]) / batch
        found.append(-(share[share > 0] * np.log2(share[share > 0])).sum())
    return float(np.mean(found))


@pytest.mark.parametrize("num_classes", [10, 100, 1000])
@pytest.mark.parametrize("run", [4, 16])
def test_batches_of_a_class_sorted_set_are_mixed(ordered: CompiledDataset, num_classes: int, run: int) -> None:
    labels = np.arange(len(ordered)) * num_classes // len(ordered)
    full = class_entropy(np.array(list(ShuffleSampler(ordered))), labels)
    for epoch in range(2):
        order = whole(order_of(ordered, epoch, run_bytes=PITCH * run))
        assert class_entropy(order, labels) >= 0.9 * full
    assert class_entropy(np.arange(len(ordered)), labels) < 0.5 * full


def test_every_position_is_equally_likely_in_every_place(mixed: CompiledDataset) -> None:
    part = Subset(mixed, range(10))
    table = np.zeros((10, 10))
    for seed in range(1000):
        table[np.arange(10), whole(order_of(part, seed=seed, run_bytes=PITCH * 3, window_runs=2))] += 1
    assert ((table - 100) ** 2 / 100).sum() < 81 + 4 * np.sqrt(2 * 81)


@pytest.mark.parametrize("chunk", [7, 1 << 18])
def test_the_storage_order(mixed: CompiledDataset, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "_CHUNK", chunk)
    ranks = storage_ranks(mixed)
    found = storage_order(mixed)
    assert found.positions is not None
    assert found.positions.dtype == np.int32
    assert np.array_equal(found.positions, np.argsort(ranks))
    assert found.mean_record_bytes == PITCH
    val = storage_order(CompiledDataset(mixed.root, split="val"))
    assert val.positions is not None
    assert np.array_equal(val.positions, np.argsort(ranks[1500:]))


@pytest.mark.parametrize("chosen", [[5, -1, 3, 3, 700], [], [9], np.arange(1999, 0, -2)])
def test_the_storage_order_of_subsets(mixed: CompiledDataset, chosen: Any) -> None:
    ranks = storage_ranks(mixed)[np.asarray(chosen, np.int64)]
    found = storage_order(Subset(mixed, chosen))
    assert found.position(np.arange(len(chosen))).tolist() == np.argsort(ranks, kind="stable").tolist()
    nested = storage_order(Subset(Subset(mixed, chosen), range(len(chosen))[::-1]))
    assert nested.position(np.arange(len(chosen))).tolist() == np.argsort(ranks[::-1], kind="stable").tolist()


def test_source_order_needs_no_array(ordered: CompiledDataset) -> None:
    assert storage_order(ordered).positions is None
    assert storage_order(Subset(ordered, [3, 4, 9])).positions is None


def test_records_of_different_lengths(spectrograms: tuple[Path, Any]) -> None:
    dataset = CompiledDataset(spectrograms[0])
    lengths = -(-dataset.stored.index.record[:, 2] // 64) * 64
    assert storage_order(dataset).mean_record_bytes == lengths.mean()
    assert sorted(BlockShuffleSampler(dataset)) == list(range(30))


@pytest.mark.parametrize("dataset", [[1, 2, 3], 5, Subset([1, 2, 3], [0])])  # type: ignore[arg-type]
def test_another_dataset_is_refused(dataset: Any) -> None:
    with pytest.raises(TypeError, match=r"dataset must be a CompiledDataset or a Subset of one, got (list|int)"):
        BlockShuffleSampler(dataset)


def test_a_subset_of_samples_that_are_not_there(mixed: CompiledDataset) -> None:
    with pytest.raises(IndexError, match="the Subset must have positions below 2000, got 3 to 2000"):
        BlockShuffleSampler(Subset(mixed, [3, 2000]))


@pytest.mark.parametrize("name", ["run_bytes", "window_runs"])
def test_wrong_arguments(mixed: CompiledDataset, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got {name}=0"):
        BlockShuffleSampler(mixed, **{name: 0})


def test_a_state_of_another_run_is_refused(
    mixed: CompiledDataset, tmp_path: Path, write_dataset: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = BlockShuffleSampler(mixed, rank=0, world_size=2).state_dict()
    with pytest.raises(ValueError, match="does not fit this sampler: world_size is 4 here, 2 in the state"):
        BlockShuffleSampler(mixed, rank=0, world_size=4).load_state_dict(state)
    with pytest.raises(ValueError, match="run_bytes is 640 here, 1048576 in the state"):
        BlockShuffleSampler(mixed, run_bytes=640, rank=0, world_size=2).load_state_dict(state)
    write_dataset(tmp_path / "other.pc", TINY, 2000, generation=2)
    with pytest.raises(ValueError, match="run_samples is 16384 here, 7 in the state"):
        BlockShuffleSampler(mixed, rank=0, world_size=2).load_state_dict({**state, "run_samples": 7})
    with pytest.raises(ValueError, match=r"storage is \d+ here, \d+ in the state"):
        BlockShuffleSampler(CompiledDataset(tmp_path / "other.pc"), rank=0, world_size=2).load_state_dict(state)
    sampler = BlockShuffleSampler(mixed)
    sampler.load_state_dict(sampler.state_dict())
    monkeypatch.setattr(Ranks, "current", lambda self: Rank(0, 2, "pad"))
    with pytest.raises(ValueError, match="world_size is 2 here, 1 in the state"):
        sampler.begin()
