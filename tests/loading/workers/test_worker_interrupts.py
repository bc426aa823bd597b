"""Interrupts, kills and stops at any moment: what comes out is right, or an error; and the next epoch is right."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import worker_functions

from precompile import CompiledDataset, Loader
from precompile.errors import LoaderStalled, WorkerDiedError
from precompile.format.schema import FieldSpec

SHAPE = (3, 16, 16)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    root = tmp_path_factory.mktemp("interrupts") / "x.pc"
    request.getfixturevalue("write_dataset")(root, [FieldSpec("image", "uint8", SHAPE)], 256, num_shards=2)
    return root


@pytest.fixture
def interrupted_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """interrupted_after(seconds): ctrl-C, once."""

    def arm(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    # One that comes while Python forks or frees something is not raised, and pytest would keep all that it has met.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    yield arm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def sums(batches: object) -> list[int]:
    return [int(batch.long().sum()) for batch in batches]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["same", "with_text"])
def test_an_interrupt_at_any_moment(root: Path, interrupted_after: Callable[[float], None], name: str) -> None:
    """Half a message may be sent or received then."""
    collate = worker_functions.with_text if name == "with_text" else None
    dataset = CompiledDataset(root, fields="image", transform=worker_functions.same)
    loader = Loader(dataset, 4, workers=2, start_method="fork", sampler=range(256), collate=collate)
    expected = sums(Loader(dataset, 4, sampler=range(256)))
    rng = random.Random(0)
    for _ in range(25):
        seen: list[int] = []
        with contextlib.suppress(KeyboardInterrupt):
            interrupted_after(rng.uniform(0.0005, 0.06))
            for batch in loader:
                seen.append(int((batch["images"] if collate else batch).long().sum()))
        interrupted_after(0)
        assert seen == expected[: len(seen)]
    found = [int((batch["images"] if collate else batch).long().sum()) for batch in loader]
    assert found == expected
    del loader
    gc.collect()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_kills_at_any_moment(root: Path, number: signal.Signals) -> None:
    dataset = CompiledDataset(root, fields="image", transform=worker_functions.same)
    loader = Loader(dataset, 4, workers=2, start_method="fork", sampler=range(256), prefetch=8)
    expected = sums(loader)
    rng = random.Random(number)
    for _ in range(20):
        pids = [pid for _, pid in loader.watched_processes()]
        at, seen = rng.randrange(64), []
        with contextlib.suppress(WorkerDiedError):
            for position, batch in enumerate(loader):
                seen.append(int(batch.long().sum()))
                if position == at and pids:
                    os.kill(rng.choice(pids), number)
        assert seen == expected[: len(seen)]
        if rng.random() < 0.3 and (pids := [pid for _, pid in loader.watched_processes()]):
            os.kill(rng.choice(pids), number)  # while it waits for the next epoch
    with contextlib.suppress(WorkerDiedError):
        list(loader)
    assert sums(loader) == expected


def test_a_worker_that_stops_within_a_message(root: Path) -> None:
    dataset = CompiledDataset(root, fields="image", transform=worker_functions.same)
    loader = Loader(dataset, 64, workers=1, start_method="fork", timeout=2, collate=worker_functions.very_long)
    stream = iter(loader)
    next(stream)
    ((_, pid),) = loader.watched_processes()
    while "sock" not in Path(f"/proc/{pid}/wchan").read_text():  # until it waits for this process to read the rest
        os.sched_yield()
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(LoaderStalled, match=r"stopped \(T\)"):
        list(stream)


def test_more_batches_are_kept_than_files_may_be_open(root: Path) -> None:
    dataset = CompiledDataset(root, fields="image", transform=worker_functions.same)
    loader = Loader(dataset, 1, workers=1, start_method="fork")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, hard))
    try:
        kept = list(loader)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(kept) == 256
    assert torch.equal(torch.cat(kept), dataset.collate([dataset[index] for index in range(256)]))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ["of_another_axis", "of_another_shape", "of_another_dtype"])
def test_a_tensor_that_is_made_another_in_place(root: Path, name: str, workers: int) -> None:
    dataset = CompiledDataset(root, fields="image", transform=getattr(worker_functions, name))
    batch = next(iter(Loader(dataset, 4, workers=workers, start_method="fork")))
    assert torch.equal(batch, torch.stack([dataset[index] for index in range(4)]))
    assert batch.dtype == dataset[0].dtype


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_that_runs_out(root: Path, workers: int) -> None:
    dataset = CompiledDataset(root, fields="image", transform=worker_functions.runs_out)
    with pytest.raises(RuntimeError, match="the transform raised StopIteration"):
        list(Loader(dataset, 8, workers=workers, start_method="fork"))


def test_an_exception_without_a_text(root: Path) -> None:
    dataset = CompiledDataset(root, fields="image", transform=worker_functions.raises_the_untold)
    with pytest.raises(worker_functions.Untold) as caught:
        list(Loader(dataset, 8, workers=1, start_method="fork"))
    assert "in raises_the_untold" in "\n".join(caught.value.__notes__)
    del caught


def test_one_large_batch_does_not_stay_in_memory(tmp_path: Path, write_dataset: Callable[..., object]) -> None:
    write_dataset(tmp_path / "x.pc", [FieldSpec("image", "uint8", (1, 8, 8))], 400)
    dataset = CompiledDataset(tmp_path / "x.pc", fields="image", transform=worker_functions.sometimes_huge)
    loader = Loader(dataset, 1, workers=1, start_method="fork", sampler=range(400))
    sizes = [batch.numel() for batch in loader]
    assert max(sizes) > 10_000_000
    ((_, pid),) = loader.watched_processes()
    maps = [
        line.split()[0] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "precompile-batch" in line
    ]
    total = sum(int(end, 16) - int(start, 16) for start, end in (part.split("-") for part in maps))
    assert total < 10_000_000


def test_a_loader_with_workers_in_a_worker(root: Path) -> None:
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        text = pool.apply(worker_functions.iterate_with_workers, (str(root),))
    assert "give the Loader there workers=0" in text


def test_a_forked_child_that_exits_leaves_the_workers_alone(root: Path) -> None:
    dataset = CompiledDataset(root, fields="image", transform=worker_functions.same)
    loader = Loader(dataset, 4, workers=2, start_method="fork")
    stream = iter(loader)
    next(stream)
    child = os.fork()
    if child == 0:
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(stream)) == 63
