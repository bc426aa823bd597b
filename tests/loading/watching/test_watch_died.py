"""Workers that are dead: how they ended, why, and what the evidence is."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stalls import Outcome

from precompile.loading.watching.dead_workers import Evidence, OomKills, describe, how_it_ended, oom_kills, why
from precompile.machine import MemoryLimits

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="what is seen of processes is seen in /proc")
GIB = 2**30
LIMITED = MemoryLimits(64 * GIB, 8 * GIB, 7 * GIB, GIB)
FREE = MemoryLimits(64 * GIB, None, None, 32 * GIB)


BEFORE = OomKills(3, 5)


def evidence(*, now: OomKills = BEFORE, memory: MemoryLimits = FREE) -> Evidence:
    return Evidence(BEFORE, now, memory, 2 * GIB, 4 * GIB)


@on_linux
@pytest.mark.parametrize(
    ("name", "how", "why"),
    [
        ("killed", "was killed by SIGKILL", "Probably the kernel's OOM killer"),
        ("bus_error", "was killed by SIGBUS", "a RAM disk or shared memory is full: /dev/shm has"),
        ("exits", "exited with code 3", "Something in the dataset called sys.exit or os._exit"),
    ],
)
def test_a_worker_of_a_dataloader(stall: Callable[..., Outcome], name: str, how: str, why: str) -> None:
    outcome = stall(name)
    assert outcome.error == "WorkerDiedError", outcome
    assert outcome.cause, "what torch said is the cause"
    assert re.search(rf"^after [0-5] batch(es)?: worker 1 \(pid \d+\) {how}\. .*{re.escape(why)}", outcome.text)
    assert outcome.threads == []
    assert outcome.is_restored


@pytest.fixture
def small_cgroup(tmp_path: Path) -> Iterator[Path]:
    """A control group with too little memory."""
    parent = Path("/sys/fs/cgroup/memory")
    folder = parent / f"precompile-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group of one's own here: {error}")
    (folder / "memory.limit_in_bytes").write_text(str(512 * 2**20))
    yield folder
    folder.rmdir()


@on_linux
def test_the_kernel_counts_what_it_kills_for_memory(stall: Callable[..., Outcome], small_cgroup: Path) -> None:
    outcome = stall("oom", small_cgroup)
    assert outcome.error == "WorkerDiedError", outcome
    expected = r"The kernel's OOM killer did it: it has ended 1 process\(es\) of this container"
    assert re.search(rf"worker 0 \(pid \d+\) was killed by SIGKILL\. {expected}", outcome.text), outcome.text
    assert "of the container's limit of 0.50 GiB in use" in outcome.text


@pytest.mark.parametrize(
    ("code", "how"),
    [(-9, "was killed by SIGKILL"), (-11, "was killed by SIGSEGV"), (3, "exited with code 3"), (-60, "signal 60")],
)
def test_how_it_ended(code: int, how: str) -> None:
    assert how_it_ended(code).endswith(how)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (OomKills(4, 6), r"OOM killer did it: it has ended 1 process\(es\) of this container since"),
        (OomKills(3, 7), r"^Probably the kernel's OOM killer: it has ended 2 process\(es\) of this machine since"),
        (OomKills(3, 5), r"^Probably the kernel's OOM killer .* though no such kill was counted"),
        (OomKills(None, None), r"^Probably the kernel's OOM killer"),
    ],
)
def test_a_kill_is_explained_by_the_counts(now: OomKills, expected: str) -> None:
    assert re.search(expected, why(-9, evidence(now=now)))


def test_a_kill_comes_with_limit_and_use() -> None:
    text = why(-9, evidence(memory=LIMITED))
    assert "7.00 GiB of the container's limit of 8.00 GiB in use, 1.00 GiB of 64.00 GiB available" in text
    assert "the container has no limit of its own, 32.00 GiB" in why(-9, evidence())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (-7, r"a RAM disk or shared memory is full: /dev/shm has 2\.00 GiB of 4\.00 GiB in use"),
        (-11, r"The code of a library did that"),
        (-6, r"The code of a library did that"),
        (-15, r"Somebody asked it to end"),
        (-12, r"Somebody sent it that signal"),
        (0, r"It ended by itself"),
        (1, r"called sys\.exit or os\._exit, or the worker could not start"),
    ],
)
@on_linux
def test_other_ends_have_other_reasons(code: int, expected: str) -> None:
    assert re.search(expected, why(code, evidence()))


def test_several_dead_share_a_reason() -> None:
    text = describe([("worker 0", 7, -9), ("worker 3", 9, -9)], evidence())
    assert text.startswith("worker 0 (pid 7) was killed by SIGKILL; worker 3 (pid 9) was killed by SIGKILL. Probably")
    assert text.count("Probably") == 1


def machine_root(root: Path, *, group: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": group, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_kills_are_counted_in_cgroup_v2(tmp_path: Path) -> None:
    events = {"sys/fs/cgroup/job/memory.events": "low 0\noom 9\noom_kill 2\n", "proc/vmstat": "oom_kill 5\n"}
    assert oom_kills(root=machine_root(tmp_path, group="0::/job\n", files=events)) == OomKills(2, 5)


def test_kills_are_counted_in_cgroup_v1(tmp_path: Path) -> None:
    control = {"sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"}
    assert oom_kills(root=machine_root(tmp_path, group="9:memory:/job\n", files=control)) == OomKills(4, None)


def test_where_nothing_is_counted_nothing_is_known(tmp_path: Path) -> None:
    assert oom_kills(root=tmp_path) == OomKills(None, None)
