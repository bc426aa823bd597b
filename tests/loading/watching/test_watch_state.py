"""What is read from /proc, of a folder that stands for a machine and of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from precompile.loading.watching.process_state import (
    GONE,
    UNKNOWN,
    cpu_shares,
    descendants,
    mount_type,
    state_of,
    where_it_waits,
)
from precompile.loading.watching.worker_processes import Worker, exit_code, workers_of

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def add_process(root: Path, pid: int, *, letter: str = "S", parent: int = 1, ticks: int = 0, name: str = "python",
                exit_status: int = 0) -> None:  # fmt: skip
    columns = [letter, parent, *[0] * 9, ticks, 0, 0, 0, 20, 0, 3, *[0] * 31, exit_status]
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, columns))}\n")


def test_a_name_with_spaces_and_parentheses(tmp_path: Path) -> None:
    add_process(tmp_path, 7, letter="D", parent=3, name="a) R 1 (b")
    state = state_of(7, root=tmp_path)
    assert (state.letter, state.parent, state.num_threads, state.exit_code) == ("D", 3, 3, None)


@pytest.mark.parametrize(("exit_status", "code"), [(9, -9), (3 << 8, 3), (11 | 128, -11), (0, 0)])
def test_a_zombie_says_how_it_ended(tmp_path: Path, exit_status: int, code: int) -> None:
    add_process(tmp_path, 7, letter="Z", exit_status=exit_status)
    assert state_of(7, root=tmp_path).exit_code == code


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert state_of(7, root=tmp_path) == GONE
    assert where_it_waits(7, 7, root=tmp_path) == ("", "", "")
    assert cpu_shares([7], 0.0, root=tmp_path) == {7: 0.0}


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    assert state_of(7, root=tmp_path) == UNKNOWN
    assert descendants(7, root=tmp_path) == []
    assert mount_type("/data", root=tmp_path) == "unknown"


def test_descendants_are_found_through_the_dead(tmp_path: Path) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 10), (20, 1)):
        add_process(tmp_path, pid, parent=parent, letter="Z" if pid == 11 else "S")
    assert descendants(10, root=tmp_path) == [11, 13, 12]


def test_where_a_thread_waits(tmp_path: Path) -> None:
    folder = tmp_path / "proc/7/task/8"
    folder.mkdir(parents=True)
    (folder / "wchan").write_text("futex_wait_queue")
    (folder / "syscall").write_text("999 0x7f01 0x80 0x2 0x0 0x0 0x0 0x7ffd0 0x7f5000001234\n")
    (tmp_path / "proc/7/maps").write_text(
        "7f4000000000-7f5000000000 r--p 00000000 08:01 1 /usr/lib/libc.so.6\n"
        "7f5000000000-7f5000002000 r-xp 00000000 08:01 2 /opt/site packages/libgomp-a34b3233.so.1\n"
    )
    assert where_it_waits(7, 8, root=tmp_path) == ("futex_wait_queue", "libgomp-a34b3233.so.1", "")


def test_a_thread_that_runs_waits_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / "proc/7/task/7"
    folder.mkdir(parents=True)
    (folder / "wchan").write_text("0")
    (folder / "syscall").write_text("running\n")
    assert where_it_waits(7, 7, root=tmp_path) == ("", "", "")


def test_the_mount_of_a_path_is_found_by_text(tmp_path: Path) -> None:
    lines = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
        "2 1 0:4 / /mnt/my\\040data rw - fuse.sshfs host: rw",
        "3 1 0:5 / /mnt rw - nfs4 server: rw",
    )
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("\n".join(lines))
    paths = ("/mnt/my data/a.jpg", "/mnt/other", "/mnt", "/mntx", "/")
    assert [mount_type(path, root=tmp_path) for path in paths] == ["fuse.sshfs", "nfs4", "nfs4", "ext4", "ext4"]


@on_linux
def test_a_real_process_that_reads_a_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    fd = os.open(fifo, os.O_RDWR)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=fd) as process:
        while "read" not in where_it_waits(process.pid, process.pid)[0]:
            assert process.poll() is None
        waits = where_it_waits(process.pid, process.pid)
        assert process.pid in descendants(os.getpid())
        process.kill()
    os.close(fd)
    assert waits[2] == str(fifo)


@on_linux
def test_the_path_that_a_real_process_opens(tmp_path: Path) -> None:
    fifo = tmp_path / "fïfo"
    os.mkfifo(fifo)
    with subprocess.Popen([sys.executable, "-c", f"open({str(fifo)!r})"]) as process:
        while where_it_waits(process.pid, process.pid)[0] not in ("wait_for_partner", "fifo_open"):
            assert process.poll() is None
        waits = where_it_waits(process.pid, process.pid)
        process.kill()
    if os.uname().machine in ("x86_64", "aarch64"):
        assert waits[2] == str(fifo)


@on_linux
def test_a_child_that_nobody_waited_for_says_how_it_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import os; os._exit(5)"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    process.stdout.close()
    while state_of(process.pid).letter != "Z":
        pass
    assert exit_code(Worker("worker", process.pid)) == 5
    process.wait()
    assert exit_code(Worker("worker", process.pid)) is None, "nobody knows any more"


def test_a_loader_can_name_its_processes() -> None:
    class Names:
        def watched_processes(self) -> list[tuple[str, int]]:
            return [("copier 0", 17)]

    expected = (Worker("copier 0", 17),)
    assert workers_of(Names()).known == expected
    assert workers_of(iter(()), Names()).known == expected
    assert not workers_of(Names()).are_guessed
