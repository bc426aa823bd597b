"""A loader that does not stall: nothing is raised, nothing is left, and what it raises itself comes through."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from stalls import Outcome
from torch.utils.data import DataLoader

from precompile.loading.watching import interrupt
from precompile.loading.watching.watch import watch

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="what is seen of processes is seen in /proc")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = signal.getsignal(interrupt.SIGNAL)
    yield
    gc.collect()
    assert monitors() == []
    assert signal.getsignal(interrupt.SIGNAL) == before


def monitors() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("precompile-watch")]


def test_the_batches_are_those_of_the_loader() -> None:
    loader = DataLoader(torch.arange(10), batch_size=3)  # type: ignore[arg-type]
    watched = watch(loader, 60)
    assert [batch.tolist() for batch in watched] == [batch.tolist() for batch in loader]
    assert [batch.tolist() for batch in watched] == [batch.tolist() for batch in loader], "a second epoch"
    assert len(watched) == len(loader) == 4
    assert watched.iterable is loader


def test_a_generator_can_be_watched_and_has_no_len() -> None:
    watched = watch((number for number in range(3)), 60)
    assert list(watched) == [0, 1, 2]
    with pytest.raises(TypeError, match="len"):
        len(watched)


def test_after_the_end_it_stays_at_the_end() -> None:
    batches = iter(watch([1, 2], 60))
    assert list(batches) == [1, 2]
    assert list(batches) == []


def test_leaving_a_loop_ends_the_watch() -> None:
    for number in watch(range(5), 60):
        assert monitors() == ["precompile-watch"]
        if number == 2:
            break
    assert monitors() == []


def test_close_ends_it_and_the_generator_that_it_made() -> None:
    closed = []

    class Loader:
        def __iter__(self) -> Iterator[int]:
            try:
                yield from range(5)
            finally:
                closed.append(True)

    batches: Any = iter(watch(Loader(), 60))
    next(batches)
    batches.close()
    assert closed == [True]
    assert monitors() == []
    with pytest.raises(StopIteration):
        next(batches)


def test_a_generator_of_the_users_goes_on_after_the_watch() -> None:
    numbers = iter(number for number in range(5))
    for number in watch(numbers, 60):
        if number == 1:
            break
    assert list(numbers) == [2, 3, 4]


def test_an_error_of_the_loader_comes_through_and_the_next_batch_after_it() -> None:
    class Fails(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            if index == 1:
                raise RuntimeError("sample 1 is damaged")
            return index

    batches = iter(watch(DataLoader(Fails(), batch_size=None), 60))
    assert next(batches) == 0
    with pytest.raises(RuntimeError, match=r"^sample 1 is damaged$"):
        next(batches)
    assert monitors() == []
    assert next(batches) == 2
    assert monitors() == ["precompile-watch"], "what goes on is watched again"


def test_an_error_at_the_start_comes_through() -> None:
    class Fails:
        def __iter__(self) -> Iterator[int]:
            raise OSError("no such share")

    with pytest.raises(OSError, match=r"^no such share$"):
        iter(watch(Fails(), 60))


def test_an_iteration_that_is_thrown_away_is_collected() -> None:
    batches = iter(watch(range(5), 60))
    next(batches)
    cycle: list[Any] = [batches]
    cycle.append(cycle)
    del batches, cycle
    gc.collect()
    assert monitors() == []


def test_two_at_once_share_the_signal() -> None:
    first, second = iter(watch(range(2), 60)), iter(watch(range(3), 60))
    assert list(first) == [0, 1]
    assert signal.getsignal(interrupt.SIGNAL) is not signal.SIG_DFL
    assert list(second) == [0, 1, 2]


def test_a_handler_of_before_is_put_back() -> None:
    def mine(number: int, frame: object) -> None: ...

    before = signal.signal(interrupt.SIGNAL, mine)
    try:
        assert list(watch(range(3), 60)) == [0, 1, 2]
        assert signal.getsignal(interrupt.SIGNAL) is mine
    finally:
        signal.signal(interrupt.SIGNAL, before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_goes_on_with_a_watch_of_its_own() -> None:
    batches = iter(watch(range(4), 60))
    next(batches)
    pid = os.fork()
    if not pid:
        good = next(batches) == 1 and monitors() == ["precompile-watch"]
        good = good and list(batches) == [2, 3] and monitors() == []
        os._exit(0 if good else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert list(batches) == [1, 2, 3]


def test_a_wait_that_ends_in_time_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    warned = threading.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warned.set()

    def until_warned() -> Iterator[bool]:
        yield warned.wait(60)

    handler = Heard()
    logging.getLogger("precompile").addHandler(handler)
    try:
        assert list(watch(until_warned(), 120, warn_seconds=0.1)) == [True]
    finally:
        logging.getLogger("precompile").removeHandler(handler)
    assert caplog.records[0].getMessage().startswith("waiting for data for 0 s (waiting for batch 1)\n")


@on_linux
@pytest.mark.parametrize("name", ["no_stall", "thread_no_stall", "slow_consumer", "slow_but_moving", "paused"])
def test_no_false_alarm(stall: Callable[..., Outcome], name: str) -> None:
    outcome = stall(name)
    assert outcome.error == "", outcome.text
    assert outcome.batches == 12
    assert "ERROR" not in [level for level, _ in outcome.logged]
    assert outcome.threads == []
    assert outcome.is_restored
    if name == "slow_but_moving":
        assert outcome.logged[0][1].startswith("waiting for data for ")


@on_linux
def test_an_error_in_a_worker_comes_through_when_another_has_ended(stall: Callable[..., Outcome]) -> None:
    outcome = stall("fails")
    assert outcome.error == "RuntimeError", outcome
    assert "sample 6 is damaged" in outcome.text
    assert outcome.batches == 8
    assert outcome.threads == []


@pytest.mark.parametrize("bad", [0, -1, float("nan"), "60", True, float("inf")])
@pytest.mark.parametrize("name", ["timeout", "warn_seconds"])
def test_a_wrong_time_is_refused(bad: object, name: str) -> None:
    options: Any = {"timeout": 60, name: bad}
    with pytest.raises(ValueError, match=f"^{name} must be a number of seconds above 0, got {name}="):
        watch([1], **options)


def test_what_is_no_iterable_is_refused() -> None:
    nothing: Any = 3
    with pytest.raises(TypeError, match=r"^watch needs an iterable, such as a DataLoader, got int$"):
        watch(nothing, 60)
