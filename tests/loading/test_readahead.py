"""ReadAhead: which pages are asked for, that they come, and that data in memory costs ever fewer questions."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import precompile.loading.reading.readahead as readahead_module
from precompile import BlockShuffleSampler, CompiledDataset, Loader
from precompile.format.schema import FieldSpec
from precompile.format.stored import Stored
from precompile.loading.reading.readahead import ReadAhead, pieces

PAGE = mmap.PAGESIZE
RECORDS = st.lists(st.tuples(st.integers(1, 1 << 22), st.integers(1, 1 << 19)), min_size=1, max_size=30)


@given(RECORDS)
def test_pieces_cover_the_records_and_little_else(records: list[tuple[int, int]]) -> None:
    begins, lengths = np.array(records).T
    found = pieces(begins, begins + lengths, 128 << 10).astype(np.int64)
    starts, sizes = found.T
    assert (starts % PAGE == 0).all()
    assert (sizes % PAGE == 0).all()
    assert (sizes > 0).all()
    assert (sizes <= 128 << 10).all()
    assert (starts[1:] >= (starts + sizes)[:-1]).all(), "sorted, and nothing twice"
    wanted = np.zeros((1 << 22) + (1 << 19) + PAGE, bool)
    for begin, length in records:
        wanted[begin : begin + length] = True
    asked = np.zeros_like(wanted)
    for start, size in found.tolist():
        asked[start : start + size] = True
    assert asked[wanted].all()
    extra = np.flatnonzero(asked & ~wanted)
    runs = np.split(extra, np.flatnonzero(np.diff(extra) > 1) + 1)
    assert max(map(len, runs)) <= (32 << 10) + 2 * PAGE


@pytest.fixture
def stored(tmp_path: Path, write_dataset: Callable[..., Any]) -> Stored:
    """60 samples of 100 kB in two flat shards on the local disk."""
    write_dataset(tmp_path / "x.pc", [FieldSpec("image", "uint8", (100_000,))], 60, num_shards=2, store="flat")
    return Stored(tmp_path / "x.pc")


def drop_pages(stored: Stored) -> None:
    for path in (stored.root / "shards").iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def are_resident(stored: Stored, numbers: np.ndarray) -> bool:
    assert stored.shards.window is not None
    places, lengths = stored.extents(numbers)
    begins = places + stored.shards.window.ctypes.data
    advice = readahead_module._advice()
    assert advice is not None
    return advice.are_resident(begins, begins + lengths)


def wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            return False
        os.sched_yield()
    return True


@pytest.mark.parametrize("at_once", [True, False])
def test_cold_records_come_into_memory(stored: Stored, at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not at_once:
        monkeypatch.setattr(readahead_module._Advice, "_at_once", lambda self, ranges: False)
    drop_pages(stored)
    numbers = np.arange(0, 60, 7)
    if are_resident(stored, numbers):
        pytest.skip("this file system keeps its pages")
    ask = ReadAhead(stored).plan(lambda: numbers)
    assert ask is not None
    ask()
    assert wait_until(lambda: are_resident(stored, numbers))


def test_data_in_memory_is_asked_for_ever_less(stored: Stored) -> None:
    asked = []
    reader = ReadAhead(stored)
    for number in range(200):
        ask = reader.plan(lambda: np.arange(60))
        if ask is not None:
            asked.append(number)
            ask()
    assert asked[:6] == [0, 2, 6, 14, 30, 62]
    assert len(asked) < 10


def test_it_wakes_up_when_data_is_cold_again(stored: Stored) -> None:
    reader = ReadAhead(stored)
    numbers = np.arange(60)
    for _ in range(100):
        if (ask := reader.plan(lambda: numbers)) is not None:
            ask()
    drop_pages(stored)
    if are_resident(stored, numbers):
        pytest.skip("this file system keeps its pages")
    for _ in range(65):
        if (ask := reader.plan(lambda: numbers)) is not None:
            ask()
    assert wait_until(lambda: are_resident(stored, numbers))


def test_nothing_to_ask_for(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ReadAhead(stored).plan(lambda: np.empty(0, np.int64)) is None
    monkeypatch.setattr(readahead_module, "_advice", lambda: None)
    assert ReadAhead(stored).plan(lambda: np.arange(3)) is None


@pytest.mark.parametrize("sampler", [None, "blocks"])
def test_a_cold_epoch_is_right(stored: Stored, sampler: str | None) -> None:
    dataset = CompiledDataset(stored.root, fields="image")
    chosen = BlockShuffleSampler(dataset, run_bytes=300_000, window_runs=4) if sampler else None
    loader = Loader(dataset, 7, sampler=chosen, shuffle=chosen is None)
    for _ in range(2):
        drop_pages(stored)
        rows = np.concatenate([batch.numpy() for batch in loader])
        expected = np.stack([dataset[index].numpy() for index in range(60)])
        assert np.array_equal(rows[np.lexsort(rows[:, :50].T)], expected[np.lexsort(expected[:, :50].T)])


def test_where_the_kernel_does_not_tell_each_record_is_asked_for_once(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readahead_module, "_is_told_of", lambda path: False)
    reader = ReadAhead(stored)
    asked = [reader.plan(lambda: np.arange(20)) is not None for _ in range(5)]
    assert asked == [True, True, True, False, False]
    monkeypatch.setattr(ReadAhead, "_fits_memory", lambda self: False)
    reader = ReadAhead(stored)
    assert all(reader.plan(lambda: np.arange(20)) is not None for _ in range(5))
