"""What another process sees of the samples that a process works on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from precompile.loading.processes import activity
from precompile.loading.processes.activity import read_activity

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and memfd_create")

BEGINS = """
import sys
from precompile.loading.processes import activity
activity.begin()
"""


@pytest.fixture
def page() -> activity.ActivityPage:
    activity.begin()
    assert activity.page is not None
    return activity.page


def child(script: str) -> subprocess.Popen[str]:
    """A new interpreter that says `ready` after the script and waits for its input to end."""
    code = f"{BEGINS}\n{script}\nprint('ready', flush=True)\nsys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_another_process_sees_what_is_read(tmp_path: Path) -> None:
    root = str(tmp_path / "phötos.pc")
    with child(f"activity.page.dataset({root!r}, 3); activity.page.reading(17, 4)") as process:
        seen = read_activity(process.pid)
        assert process.stdin is not None
        process.stdin.close()
    assert seen is not None
    assert (seen.root, seen.generation, seen.first, seen.count) == (root, 3, 17, 4)
    assert not seen.is_idle
    assert seen.counter == 1
    assert seen.changed_at <= time.monotonic()


def test_the_page_is_found_after_the_process_was_stopped_but_not_after_it_ended() -> None:
    with child("activity.page.reading(5)") as process:
        process.send_signal(signal.SIGSTOP)
        seen = read_activity(process.pid)
        process.kill()
    assert seen is not None
    assert seen.first == 5
    assert read_activity(process.pid) is None


def test_begin_twice_keeps_the_page(page: activity.ActivityPage) -> None:
    page.reading(3)
    activity.begin()
    assert activity.page is page


def test_idle_keeps_what_was_read_last(page: activity.ActivityPage) -> None:
    page.reading(8, 2)
    page.idle()
    seen = read_activity(os.getpid())
    assert seen is not None
    assert seen.is_idle
    assert (seen.first, seen.count) == (8, 2)


def test_the_counter_advances_with_the_same_sample(page: activity.ActivityPage) -> None:
    def counter() -> int:
        seen = read_activity(os.getpid())
        assert seen is not None
        return seen.counter

    before = counter()
    page.reading(8)
    page.reading(8)
    assert counter() == before + 2


def test_a_shorter_root_replaces_a_longer_one(page: activity.ActivityPage) -> None:
    page.dataset("/a/very/long/path/to/a/dataset.pc", 1)
    page.dataset("/b.pc", 2)
    seen = read_activity(os.getpid())
    assert seen is not None
    assert (seen.root, seen.generation) == ("/b.pc", 2)


def test_a_forked_child_has_a_page_of_its_own(page: activity.ActivityPage) -> None:
    page.reading(1)
    in_child, to_parent = os.pipe()
    go_on, from_parent = os.pipe()
    pid = os.fork()
    if not pid:
        assert activity.page is not None
        activity.page.reading(2)
        os.write(to_parent, b".")
        os.read(go_on, 1)
        os._exit(0)
    os.read(in_child, 1)
    of_child, of_parent = read_activity(pid), read_activity(os.getpid())
    os.write(from_parent, b".")
    os.waitpid(pid, 0)
    for fd in (in_child, to_parent, go_on, from_parent):
        os.close(fd)
    assert of_child is not None
    assert of_parent is not None
    assert (of_child.first, of_parent.first) == (2, 1)


def test_a_process_without_a_page_has_no_activity() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert read_activity(process.pid) is None
        process.kill()


def test_without_such_files_there_is_no_page() -> None:
    code = "import os; del os.memfd_create\nfrom precompile.loading.processes import activity\n"
    code += "activity.begin(); assert activity.page is None"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_each_sample_of_several_is_seen(page: activity.ActivityPage) -> None:
    seen = [read_activity(os.getpid()) for _ in page.each([5, 9, 2], "abc")]
    assert [one and (one.first, one.count, one.is_idle) for one in seen] == [
        (5, 1, False),
        (9, 1, False),
        (2, 1, False),
    ]
    assert len({one and one.counter for one in seen}) == 3


def test_a_page_can_be_read_while_it_is_written() -> None:
    write = """
import threading
def write():
    for number in range(10**9):
        activity.page.reading(number, number)
activity.page.reading(0, 0)
threading.Thread(target=write, daemon=True).start()"""
    with child(write) as process:
        seen = [read_activity(process.pid) for _ in range(200)]
        process.kill()
    numbers = [one.first for one in seen if one is not None]
    assert len(numbers) == 200
    assert numbers == sorted(numbers)
    assert numbers[-1] > numbers[0]
