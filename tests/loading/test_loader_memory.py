"""Loader: batches that are kept stay as they were, and threads end with the iterators they serve."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orders import batches, epoch_order

from precompile import CompiledDataset, Loader
from precompile.format.schema import FieldSpec

pytestmark = pytest.mark.filterwarnings("error")

Written = tuple[Path, list[dict[str, Any]]]
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> CompiledDataset:
    """40 samples of 200 kB, so that each batch is a buffer of its own."""
    root = tmp_path_factory.mktemp("large") / "x.pc"
    fields = [FieldSpec("image", "uint8", (200_000,)), FieldSpec("label", "int64", ())]
    request.getfixturevalue("write_dataset")(root, fields, 40, num_shards=2)
    return CompiledDataset(root, fields="image")


@pytest.fixture
def loader_threads() -> Callable[..., list[threading.Thread]]:
    """Threads of Loaders that were made since; those of Loaders that are kept elsewhere do not count."""
    gc.collect()
    before = set(threading.enumerate())

    def new(*, ending: bool = False) -> list[threading.Thread]:
        found = [thread for thread in set(threading.enumerate()) - before if "precompile-loader" in thread.name]
        if ending:
            for thread in found:
                thread.join(30)
        return [thread for thread in found if thread.is_alive()]

    return new


def epoch_of(dataset: CompiledDataset, batch_size: int, epoch: int) -> list[torch.Tensor]:
    order = epoch_order(len(dataset), shuffle=True, seed=0, epoch=epoch)
    return [dataset.collate([dataset[index] for index in part.tolist()])
            for part in batches(order, batch_size)]  # fmt: skip


WAYS_TO_KEEP = (
    lambda batch: batch,
    lambda batch: batch[1:],
    lambda batch: batch.numpy(),
    lambda batch: batch.transpose(0, 1)[::3].transpose(0, 1),
)


@pytest.mark.parametrize("which", ["images", "large"])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_kept_batches_are_never_overwritten(
    which: str, data: st.DataObject, images: Written, large: CompiledDataset
) -> None:
    dataset = large if which == "large" else CompiledDataset(images[0], fields="image")
    loader = Loader(dataset, 6, shuffle=True, prefetch=data.draw(st.integers(1, 4)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    share_kept = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    kept: list[tuple[Any, Any]] = []
    for epoch in range(6):
        for batch, expected in zip(loader, epoch_of(dataset, 6, epoch), strict=True):
            assert torch.equal(batch, expected)
            if rng.random() < share_kept:
                way = WAYS_TO_KEEP[rng.integers(len(WAYS_TO_KEEP))]
                kept.append((way(batch), way(expected)))
            elif rng.random() < 0.5:
                batch.fill_(0)
            if kept and rng.random() < 0.3:
                held, expected = kept.pop(int(rng.integers(len(kept))))
                assert np.array_equal(held, expected)
    assert all(np.array_equal(held, expected) for held, expected in kept)


def test_an_epoch_reuses_its_memory(large: CompiledDataset) -> None:
    loader = Loader(large, 12, prefetch=2)
    addresses = [batch.data_ptr() for _ in range(5) for batch in loader]
    assert len(addresses) == 20
    assert len(set(addresses)) <= 12


LoaderThreads = Callable[..., list[threading.Thread]]


def test_a_thread_ends_with_its_loader(large: CompiledDataset, loader_threads: LoaderThreads) -> None:
    loader = Loader(large, 4)
    assert len(list(loader)) == 10
    assert len(loader_threads()) == 1
    assert len(list(loader)) == 10
    assert len(loader_threads()) == 1
    del loader
    assert loader_threads(ending=True) == []


def test_a_thread_ends_when_an_iterator_is_dropped(large: CompiledDataset, loader_threads: LoaderThreads) -> None:
    loader = Loader(large, 4)
    half_read = iter(loader)
    next(half_read)
    assert len(loader_threads()) == 1
    del half_read
    assert loader_threads() == []
    for number, _ in enumerate(loader):
        if number == 2:
            break
    assert loader_threads() == []
    assert len(list(loader)) == 10


def test_a_thread_ends_after_an_exception_of_the_consumer(
    large: CompiledDataset, loader_threads: LoaderThreads
) -> None:
    def train() -> None:
        for _ in Loader(large, 4):
            raise RuntimeError("the consumer fails")

    with pytest.raises(RuntimeError, match="the consumer fails"):
        train()
    gc.collect()
    assert loader_threads(ending=True) == []


@pytest.mark.parametrize("which", ["images", "large"])
def test_two_iterators_at_once(which: str, images: Written, large: CompiledDataset) -> None:
    dataset = large if which == "large" else CompiledDataset(images[0], fields="image")
    loader = Loader(dataset, 3)
    expected = np.stack([dataset[index] for index in range(len(dataset))])
    first, second = zip(*zip(loader, loader, strict=True))
    assert np.array_equal(torch.cat(first), expected)
    assert np.array_equal(torch.cat(second), expected)


def forked(work: Callable[[], bool]) -> int:
    """Start a child that exits with 0 when work() is true and is ended after 60 s; returns its process id."""
    child = os.fork()
    if child == 0:
        good = False
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
            good = work()
        finally:
            os._exit(0 if good else 1)
    return child


@pytest.mark.parametrize("which", ["images", "large"])
def test_a_fork_in_the_middle_of_an_epoch(which: str, images: Written, large: CompiledDataset) -> None:
    dataset = large if which == "large" else CompiledDataset(images[0], fields="image")
    expected = torch.stack([dataset[index] for index in range(len(dataset))]).numpy()
    stream = iter(Loader(dataset, 1))
    begun = [next(stream).numpy() for _ in range(3)]

    def rest_is_right() -> bool:
        return np.array_equal(np.concatenate(begun + [batch.numpy() for batch in stream]), expected)

    child = forked(rest_is_right)
    assert rest_is_right()
    assert os.waitpid(child, 0)[1] == 0


def test_new_epochs_after_a_fork(large: CompiledDataset) -> None:
    loader = Loader(large, 4)
    expected = torch.cat(list(loader)).numpy()
    half_read = iter(loader)
    next(half_read)

    def epochs_are_right() -> bool:
        return all(np.array_equal(np.concatenate([b.numpy() for b in loader]), expected) for _ in range(2))

    child = forked(epochs_are_right)
    assert len(list(half_read)) == 9
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("ending", ["", "raise SystemExit(0)", "del stream", "stream = list(stream)"])
def test_processes_exit_cleanly_with_a_half_read_loader(images: Written, ending: str) -> None:
    code = """
        import os, sys
        from precompile import CompiledDataset, Loader
        for _ in range(10):
            if os.fork() == 0:
                break
        else:
            assert not any([os.wait()[1] for _ in range(10)]), "a child failed"
        loader = Loader(CompiledDataset(sys.argv[1], fields="image"), 1)
        stream, unread, other = iter(loader), iter(loader), iter(Loader(loader.dataset, 2))
        next(stream), next(other)
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code) + ending, str(images[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)
    assert (done.returncode, done.stderr) == (0, "")
