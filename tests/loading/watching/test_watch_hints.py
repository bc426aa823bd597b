"""From facts to advice."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from precompile.loading.watching.hints import Facts, hints
from precompile.loading.watching.python_stack import Frame, frames_of_main

USER = Frame("/home/me/dataset.py", 12, "__getitem__")
WORKER_LOOP = Frame("/site-packages/torch/utils/data/_utils/worker.py", 335, "_worker_loop")
QUEUE = Frame("/lib/python3.11/multiprocessing/queues.py", 113, "get")
THREADING = Frame("/lib/python3.11/threading.py", 327, "wait")
LOGGING = Frame("/lib/python3.11/logging/__init__.py", 915, "acquire")
TORCH = Frame("/site-packages/torch/functional.py", 9, "stft")


def facts(**given: object) -> Facts:
    return replace(Facts(pid=7, frames=(USER, WORKER_LOOP)), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (facts(letter="T"), r"stopped \(job control, or a container that is paused\): `kill -CONT 7`"),
        (facts(letter="t"), r"stopped \(a debugger holds it\)"),
        (facts(letter="D", file="/mnt/data/a.jpg", filesystem="nfs4"),
         r"^it waits for /mnt/data/a\.jpg, on a file system of type nfs4, which does not answer: .*cache=True"),
        (facts(waits_in="request_wait_answer"), r"^it waits for a file, which does not answer"),
        (facts(waits_in="nfs_wait_bit_killable"), "does not answer"),
        (facts(waits_in="rpc_wait_bit_killable"), "does not answer"),
        (facts(waits_in="folio_wait_bit_common"), "does not answer"),
        (facts(source="image = Image.open(path)"), "does not answer"),
        (facts(source="with open(path) as file:"), "does not answer"),
        (facts(waits_in="wait_for_partner", file="/tmp/fifo"), r"for /tmp/fifo, a named pipe .* that nobody writes"),
        (facts(waits_in="pipe_read", file="/tmp/fifo"), "that nobody writes"),
        (facts(waits_in="futex_wait_queue", source="with self.lock:", was_forked=True),
         r"__getitem__, dataset\.py line 12.*most likely a lock that was held when it was forked.*spawn or forkserver"),
        (facts(frames=(THREADING, USER), was_forked=True), "lock that was held when it was forked"),
        (facts(frames=(LOGGING, USER), was_forked=True), "lock that was held when it was forked"),
        (facts(source="self.lock.acquire()", was_forked=False), "a lock or a queue that somebody else holds"),
        (facts(library="libgomp-a34b3233.so.1", was_forked=True),
         r"in libgomp-a34b3233\.so\.1 for the threads of an OpenMP team that fork did not bring along.*init_worker"),
        (facts(library="libiomp5.so", letter="R", cpu_share=1.0, was_forked=True), "OpenMP team that fork did not"),
        (facts(waits_in="futex_wait_queue", frames=(TORCH, USER), was_forked=True), "OpenMP team that fork did not"),
        (facts(waits_in="futex_wait_queue", source="x = torch.stack(parts)", was_forked=True), "OpenMP team that fork"),
        (facts(library="libomp.so", was_forked=False), "OpenMP team that never comes together"),
        (facts(letter="R", cpu_share=0.98),
         r"^it runs, at 98% of a CPU, in __getitem__, dataset\.py line 12: .* raise the timeout"),
        (facts(letter="R", cpu_share=0.3), "^it runs, at 30% of a CPU"),
        (facts(source="time.sleep(60)"), r"^it sleeps in __getitem__, dataset\.py line 12: time\.sleep\(60\)$"),
        (facts(source="time.sleep(60)", is_consumer=True), "^this process itself is what is blocked: it sleeps in"),
        (facts(frames=(), has_stacks=False), r"^its stacks cannot be had: .*worker_init_fn=precompile\.init_worker$"),
    ],
)  # fmt: skip
def test_one_hint_for_one_kind(seen: Facts, expected: str) -> None:
    (hint,) = hints(seen)
    assert re.search(expected, hint), hint


@pytest.mark.parametrize(
    "seen",
    [
        facts(frames=(QUEUE, WORKER_LOOP), waits_in="poll_schedule_timeout"),
        facts(frames=(QUEUE, WORKER_LOOP), waits_in="pipe_read", file="pipe:[4711]"),
        facts(frames=(), is_consumer=True, has_stacks=False),
    ],
)
def test_who_waits_for_work_gets_none(seen: Facts) -> None:
    assert hints(seen) == []


def test_a_dataset_that_waits_in_a_queue_of_its_own_does_not_wait_for_work() -> None:
    (hint,) = hints(facts(frames=(QUEUE, USER, WORKER_LOOP)))
    assert hint.startswith("it sleeps in get, queues.py line 113")


def test_a_worker_in_the_disk_without_stacks_gets_both() -> None:
    first, second = hints(facts(letter="D", frames=(), has_stacks=False))
    assert "does not answer" in first
    assert "init_worker" in second


def test_the_main_thread_is_the_one_that_is_written_last() -> None:
    text = (
        'Thread 0x00007fde (most recent call first):\n  File "/a.py", line 1 in other\n\n'
        'Current thread 0x00007fdf (most recent call first):\n  File "/b c.py", line 20 in inner\n'
        '  File "/b c.py", line 3 in <module>\n'
    )
    assert frames_of_main(text) == (Frame("/b c.py", 20, "inner"), Frame("/b c.py", 3, "<module>"))


def test_no_stacks_have_no_frames() -> None:
    assert frames_of_main("") == ()
