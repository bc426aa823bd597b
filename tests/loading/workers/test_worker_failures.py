"""What goes wrong in a worker reaches who iterates: which sample, where, why, and what to do."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worker_functions
from builds import assert_matches
from worker_functions import POISON

from precompile import CompiledDataset, Loader
from precompile.errors import LoaderStalled, WorkerDiedError
from precompile.format.schema import FieldSpec
from precompile.format.stored import Stored

POISONED = 13


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """40 pictures; number 13 is poison."""
    root = tmp_path_factory.mktemp("poisoned") / "x.pc"
    request.getfixturevalue("write_dataset")(root, [FieldSpec("image", "uint8", (1, 8, 8))], 40)
    stored = Stored(root)
    (shard,) = stored.shard_paths
    with shard.open("r+b") as file:
        for number in range(40):
            file.seek(int(stored.index.record[number, 1]))
            file.write(bytes([POISON if number == POISONED else number]))
    return root


@pytest.fixture
def iterate(poisoned: Path) -> Iterator[Callable[..., list[torch.Tensor]]]:
    """Read all batches with this transform; afterwards no worker must be left."""

    def read(transform: Any, **options: Any) -> list[torch.Tensor]:
        dataset = CompiledDataset(poisoned, fields="image", transform=transform)
        arguments = {"workers": 2, "start_method": "fork", **options}
        return list(Loader(dataset, 4, **arguments))

    yield read
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_names_the_sample(iterate: Callable[..., Any], poisoned: Path, workers: int) -> None:
    with pytest.raises(ValueError, match=r"^this picture is poison") as caught:
        iterate(worker_functions.raises, workers=workers)
    notes = "\n".join(caught.value.__notes__)
    assert f"The transform was given sample 13 ('13.raw') of {poisoned}" in notes
    if workers:
        assert_matches(r"Raised in worker \d \(process \d+\), where the traceback was:\nTraceback", notes)
        assert_matches(r'worker_functions.py", line \d+, in raises', notes)
    del caught


def test_an_exception_that_cannot_be_pickled(iterate: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match=r"^Unpicklable: 1 and 2") as caught:
        iterate(worker_functions.raises_unpicklable)
    assert "sample 13 ('13.raw')" in "\n".join(caught.value.__notes__)
    del caught


def test_a_worker_that_asks_to_exit_does_not_end_this_process(iterate: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match=r"^SystemExit: 0"):
        iterate(worker_functions.asks_to_exit)


def test_workers_go_on_after_an_exception(poisoned: Path) -> None:
    dataset = CompiledDataset(poisoned, fields="image", transform=worker_functions.raises)
    loader = Loader(dataset, 4, workers=2, start_method="fork")
    for _ in range(3):
        seen: list[int] = []
        with pytest.raises(ValueError, match="poison"):
            seen.extend(int(batch[row, 0, 0, 0]) for batch in loader for row in range(4))
        assert seen == list(range(12))
    del loader
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("exits", r"exited with code 5\. .*os\._exit"),
        ("is_killed", r"was killed by SIGKILL\. .*OOM killer.*available"),
        ("gets_sigbus", r"was killed by SIGBUS\. A file that it had mapped was truncated, or a RAM disk"),
    ],
)
def test_a_worker_that_dies(iterate: Callable[..., Any], poisoned: Path, name: str, how: str) -> None:
    with pytest.raises(WorkerDiedError, match=rf"^worker \d \(pid \d+\) {how}") as caught:
        iterate(getattr(worker_functions, name))
    assert f"It was reading sample 13 of {poisoned} (generation 1)." in str(caught.value)


def test_a_loader_whose_worker_died_starts_new_ones(poisoned: Path) -> None:
    dataset = CompiledDataset(poisoned, fields="image", transform=worker_functions.is_killed)
    loader = Loader(dataset, 4, workers=2, start_method="fork")
    for _ in range(2):
        seen: list[int] = []
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            seen.extend(int(batch[row, 0, 0, 0]) for batch in loader for row in range(4))
        assert seen == list(range(len(seen)))
    assert not multiprocessing.active_children()


def test_a_worker_killed_while_it_waits(poisoned: Path) -> None:
    dataset = CompiledDataset(poisoned, fields="image", transform=worker_functions.same)
    loader = Loader(dataset, 4, workers=1, start_method="fork", prefetch=1)
    for _ in loader:
        pass
    ((_, pid),) = loader.watched_processes()
    os.kill(pid, 9)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        list(loader)
    assert len(list(loader)) == 10


@pytest.mark.parametrize(
    ("name", "culprit", "advice"),
    [
        ("hangs", "sleeping .*; at sample 13 '13.raw'", "it sleeps in hangs, worker_functions.py line"),
        ("is_stopped", r"stopped \(T\) .*; at sample 13 '13.raw'", r"`kill -CONT \d+` lets it go on"),
    ],
)
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_stall(
    iterate: Callable[..., Any], caplog: pytest.LogCaptureFixture, name: str, culprit: str, advice: str, device: Any
) -> None:
    with caplog.at_level(logging.WARNING, "precompile"), pytest.raises(LoaderStalled) as caught:
        iterate(getattr(worker_functions, name), timeout=1, device=device)
    report = str(caught.value)
    seconds = re.search(r"^waiting for batch 4: nothing came, after (\S+) s \(timeout=1", report)
    assert seconds, report
    assert 1 <= float(seconds[1]) <= 3
    assert_matches(rf"worker \d \(pid \d+\): {culprit}", report)
    assert_matches(advice, report)
    assert_matches(r"^waiting for data for \d s \(waiting for batch 4\)", caplog.messages[0])


def test_a_stalled_reader_of_a_pipe_is_named(iterate: Callable[..., Any], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LoaderStalled) as caught:
        iterate(worker_functions.ReadsFile(tmp_path / "pipe"), timeout=1)
    assert_matches("a named pipe", str(caught.value))


def test_a_stalled_thread_is_named_and_left_behind(poisoned: Path) -> None:
    """It ends with the process, which must not wait for it: see the test of a process that ends."""
    dataset = CompiledDataset(poisoned, fields="image", transform=worker_functions.hangs_for_a_while)
    with pytest.raises(LoaderStalled, match="waiting for batch 4: nothing came") as caught:
        list(Loader(dataset, 4, timeout=1))
    assert_matches("What to do:\n.*it waits for a lock or a queue .*hangs_for_a_while", str(caught.value))
    assert_matches("at sample 13 '13.raw' of ", str(caught.value))
    worker_functions.released.set()


def test_slow_is_not_stalled(poisoned: Path) -> None:
    dataset = CompiledDataset(poisoned, fields="image", transform=worker_functions.Slow(0.1))
    began = time.monotonic()
    batches = list(Loader(dataset, 20, workers=2, start_method="fork", timeout=0.5))
    assert time.monotonic() - began > 2
    assert len(batches) == 2


def test_a_consumer_may_take_its_time(poisoned: Path) -> None:
    dataset = CompiledDataset(poisoned, fields="image", transform=worker_functions.same)
    for number, _ in enumerate(Loader(dataset, 10, workers=1, start_method="fork", timeout=0.2)):
        until = time.monotonic() + 0.5
        while number < 2 and time.monotonic() < until:
            np.zeros(1000).sum()


def test_threads_that_are_slow_are_not_stalled(poisoned: Path) -> None:
    dataset = CompiledDataset(poisoned, fields="image", transform=worker_functions.Slow(0.1))
    assert len(list(Loader(dataset, 20, timeout=0.5))) == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_without_return(iterate: Callable[..., Any], workers: int) -> None:
    with pytest.raises(
        TypeError, match=r"the transform of field image returned None; does it lack a `return`?.*sample 0"
    ):
        iterate(worker_functions.forgets_to_return, workers=workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_results_that_do_not_go_together(iterate: Callable[..., Any], poisoned: Path, workers: int) -> None:
    with pytest.raises(ValueError, match="samples of one batch must have one shape") as caught:
        iterate(worker_functions.of_many_shapes, workers=workers)
    assert f"came from the transform of field image of {poisoned}" in "\n".join(caught.value.__notes__)
    del caught


def test_a_worker_that_cannot_start(poisoned: Path) -> None:
    dataset = CompiledDataset(poisoned, fields="image", transform=worker_functions.CannotBeLoaded())
    with pytest.raises(WorkerDiedError, match=r"^worker \d \(process \d+\) could not start \(exit code 1\).*__main__"):
        list(Loader(dataset, 4, workers=1, start_method="spawn"))


def test_more_workers_than_cpus(poisoned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precompile.machine.usable_cpus", lambda: 1)
    dataset = CompiledDataset(poisoned, fields="image", transform=worker_functions.same)
    with pytest.warns(UserWarning, match="workers=2, but this process may use 1 CPUs: more only fight"):
        list(Loader(dataset, 4, workers=2, start_method="fork"))


def test_arguments_of_a_dataloader(poisoned: Path) -> None:
    with pytest.raises(TypeError, match="Loader has no argument num_workers, nonsense; num_workers: threads= copy"):
        Loader(CompiledDataset(poisoned), 4, num_workers=2, nonsense=1)
