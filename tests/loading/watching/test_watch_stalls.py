"""Real loaders that stall: who is named, and what is said to do about it."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stalls import Outcome

from precompile.format.generation import read_current
from precompile.loading.watching.monitor import EXIT_CODE_STUCK
from precompile.loading.watching.process_state import state_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is seen of processes is seen in /proc")

Stall = Callable[..., Outcome]

IN_THE_PARENT = "most likely a lock that was held when it was forked"
OPENMP = r"threads of an OpenMP team that fork did not bring along .*worker_init_fn=precompile\.init_worker"
FIFO = r"it waits for /\S+/fifo, a named pipe \(FIFO\) that nobody writes"
ITSELF = r"this process itself is what is blocked: "


def after_seconds(text: str) -> float:
    """How long the wait had lasted when the report was made."""
    found = re.search(r"nothing came, after ([\d.]+) s", text)
    assert found is not None, text
    return float(found[1])


def assert_stalled(outcome: Outcome, *, timeout_seconds: float = 1.0, is_logged: bool = True) -> None:
    assert outcome.error == "LoaderStalled", outcome
    assert timeout_seconds <= after_seconds(outcome.text) <= timeout_seconds + 2
    assert not is_logged or ("ERROR", outcome.text) in outcome.logged
    assert outcome.is_restored
    assert outcome.exit_code == 0, outcome.stderr


@pytest.mark.parametrize(
    ("name", "seen", "hint"),
    [
        ("sleeps", r"sleeping in \S*nanosleep", r"it sleeps in sleep_for_ever, stalls\.py line \d+: time\.sleep"),
        ("sleeps_persistent", "sleeping", "it sleeps in sleep_for_ever"),
        (
            "lock",
            "sleeping in futex",
            r".*\(take_the_lock, .*: with LOCK:\), " + IN_THE_PARENT + ".*use start method spawn",
        ),
        ("stopped", r"stopped \(T\)", r"`kill -CONT (?P=pid)` lets it go on"),
        ("fifo", "sleeping in (wait_for_partner|fifo_open)", FIFO),
        ("fifo_open", r"sleeping in \S*pipe_read", FIFO),
        ("busy", "running at", "it runs, at .* of a CPU, in .*: if that goes round for ever"),
        ("openmp_dataloader", "called by lib(gomp|iomp|omp)", OPENMP),
    ],
)
def test_one_worker_of_a_dataloader_stalls(stall: Stall, name: str, seen: str, hint: str) -> None:
    outcome = stall(name)
    assert_stalled(outcome)
    assert outcome.threads == []
    state = re.search(rf"^  worker 1 \(pid (?P<pid>\d+)\): .*{seen}", outcome.text, re.MULTILINE)
    assert state is not None, outcome.text
    pattern = rf"(?P<pid>{state['pid']})\): .*{hint}"
    assert re.search(pattern, outcome.text.partition("What to do:")[2]), outcome.text
    advice = outcome.text.partition("What to do:")[2].partition("Stacks of")[0]
    assert advice.count("- worker") == 1, "the other worker only waits for work"
    assert "; waits for work" in outcome.text


def test_the_stacks_of_all_are_there(stall: Stall) -> None:
    text = stall("sleeps").text
    of_this, of_first, of_second = text.split("Stacks of ")[1:]
    assert of_this.startswith("this process")
    assert "Thread MainThread, the consumer" in of_this
    assert "dataloader.py" in of_this
    assert "in _worker_loop" in of_first
    assert "in sleep_for_ever" in of_first + of_second
    assert "run_scenario" not in of_first + of_second, "how a worker was forked is no news"


def test_a_spawned_worker_has_stacks_by_init_worker(stall: Stall) -> None:
    outcome = stall("sleeps_spawned")
    assert_stalled(outcome, timeout_seconds=10.0)
    assert re.search(r"worker 1 \(pid \d+\): it sleeps in sleep_for_ever", outcome.text), outcome.text


def test_a_worker_without_a_handler_has_a_state_but_no_stacks(stall: Stall) -> None:
    text = stall("sleeps_without_handler").text
    assert re.search(r"worker 1 \(pid \d+\): sleeping in \S*nanosleep", text), text
    assert "its stacks cannot be had: it is still starting, cannot answer, or has no handler;" in text
    assert "worker_init_fn=precompile.init_worker" in text


def test_a_plain_worker_of_multiprocessing_is_found(stall: Stall) -> None:
    outcome = stall("openmp")
    assert_stalled(outcome)
    assert re.search(rf"ForkProcess-\d+ \(pid \d+\): it waits in lib\S+ for the {OPENMP}", outcome.text), outcome.text


def test_a_worker_that_died_unnoticed_is_reported(stall: Stall) -> None:
    outcome = stall("killed_unnoticed")
    assert_stalled(outcome)
    assert re.search(r"ForkProcess-\d+ \(pid \d+\): dead, it was killed by SIGKILL", outcome.text)
    assert "Probably the kernel's OOM killer" in outcome.text


def test_what_is_read_is_named(stall: Stall, images: tuple[Path, list[dict[str, Any]]]) -> None:
    root, _ = images
    outcome = stall("compiled", root)
    assert_stalled(outcome)
    generation = read_current(root).generation
    expected = rf"at sample 2 '2\.raw' and 2 more of {re.escape(str(root))} \(generation {generation}\)"
    assert re.search(rf"worker 1 \(pid \d+\): .*{expected} on \S+ for [\d.]+ s", outcome.text), outcome.text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount")
def test_a_file_system_that_never_answers(stall: Stall) -> None:
    if not os.access("/dev/fuse", os.W_OK):
        pytest.skip("no /dev/fuse here")
    outcome = stall("fuse")
    if "PermissionError" in outcome.stderr:
        pytest.skip("this container may not mount")
    assert_stalled(outcome)
    path = r"/\S+/argument/photo\.jpg"
    assert re.search(rf"worker 1 \(pid \d+\): .* in \S*(fuse|request_wait_answer)\S*, .*on {path}", outcome.text)
    assert re.search(rf"it waits for {path}, on a file system of type fuse, which does not answer", outcome.text)
    assert "cache=True" in outcome.text


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("alone_sleeps", "it sleeps in sleep_for_ever"),
        ("alone_lock", "it waits for a lock or a queue that somebody else holds .take_the_lock"),
        ("alone_fifo", FIFO),
    ],
)
def test_without_workers_this_process_is_what_is_blocked(stall: Stall, name: str, hint: str) -> None:
    outcome = stall(name)
    assert_stalled(outcome)
    assert re.search(rf"- this process \(pid \d+\): {ITSELF}{hint}", outcome.text), outcome.text
    assert outcome.batches == 5
    assert outcome.text.startswith("waiting for batch 6: ")


@pytest.mark.parametrize(
    ("name", "what", "batches"),
    [
        ("start", "waiting for the loader to start", 0),
        ("worker_init", "waiting for batch 1", 0),
        ("shutdown_swallowed", "waiting for the loader to shut down", 3),
    ],
)
def test_it_says_what_the_consumer_waits_for(stall: Stall, name: str, what: str, batches: int) -> None:
    outcome = stall(name)
    assert_stalled(outcome)
    assert outcome.text.startswith(f"{what}: nothing came, after ")
    assert outcome.batches == batches
    assert outcome.threads == []


def test_leaving_a_loop_does_not_hang_either(stall: Stall) -> None:
    """There nothing can be raised, so it is only logged."""
    outcome = stall("shutdown")
    assert outcome.error == ""
    assert any(level == "ERROR" and "waiting for the loader to shut down" in text for level, text in outcome.logged)
    assert outcome.threads == []
    assert outcome.is_restored


def test_the_warning_comes_first_with_a_line_per_worker(stall: Stall) -> None:
    (level, text), *_ = stall("sleeps").logged
    assert level == "WARNING"
    first, *workers = text.splitlines()
    assert re.fullmatch(r"waiting for data for \d s \(waiting for batch 6\)", first)
    assert [line.split(" (pid")[0] for line in workers] == ["  worker 0", "  worker 1"]


def test_a_thread_that_consumes_gets_the_error(stall: Stall) -> None:
    outcome = stall("thread")
    assert_stalled(outcome)
    assert outcome.threads == []


@pytest.mark.parametrize("name", ["nested", "nested_outer"])
def test_a_watch_in_a_watch(stall: Stall, name: str) -> None:
    outcome = stall(name)
    assert_stalled(outcome)
    assert [level for level, _ in outcome.logged].count("ERROR") == 1
    assert re.search(r"worker 1 \(pid \d+\): it sleeps", outcome.text)
    assert outcome.threads == []


@pytest.mark.parametrize("name", ["in_c", "lock_in_a_thread"])
def test_a_consumer_that_is_stuck_for_good_ends_the_process(stall: Stall, tmp_path: Path, name: str) -> None:
    outcome = stall(name, tmp_path)
    assert outcome.exit_code == EXIT_CODE_STUCK
    assert 1 <= after_seconds(outcome.stderr) <= 3
    assert f"so this process ends with exit code {EXIT_CODE_STUCK}" in outcome.stderr
    assert ("in stuck_in_c" if name == "in_c" else "in take_the_lock") in outcome.stderr
    if name == "in_c":
        wait_for_the_end_of(int((tmp_path / "pid").read_text()))


def wait_for_the_end_of(pid: int) -> None:
    """Of a worker, which has been killed."""
    for _ in range(200):
        if state_of(pid).letter in "ZX":
            return
        threading.Event().wait(0.05)
    pytest.fail(f"process {pid} is still there")


def test_another_iteration_starts_new_workers(stall: Stall) -> None:
    outcome = stall("once")
    assert_stalled(outcome)
    assert outcome.batches == 12
    assert [level for level, _ in outcome.logged] == ["WARNING", "ERROR"]


def test_a_lock_of_the_logging_module_does_not_keep_the_error_back(stall: Stall) -> None:
    outcome = stall("logging_lock")
    assert_stalled(outcome, is_logged=False)
    assert re.search(rf"- this process \(pid \d+\): {ITSELF}it waits for a lock", outcome.text), outcome.text


def test_or_it_stays_and_says_so(stall: Stall) -> None:
    outcome = stall("in_c_stays")
    assert outcome.exit_code == 9, "the scenario ends it once the report is there"
    assert [level for level, _ in outcome.logged] == ["WARNING", "ERROR", "CRITICAL"]
    assert outcome.logged[-1][1].endswith("and stays, as exit_when_stuck=False.")
