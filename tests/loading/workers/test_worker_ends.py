"""Nothing is left of workers, however the loader or its process ends; and forks go on with workers of their own."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import worker_functions

from precompile import CompiledDataset, Loader
from precompile.format.schema import FieldSpec

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    root = tmp_path_factory.mktemp("ends") / "x.pc"
    request.getfixturevalue("write_dataset")(root, [FieldSpec("image", "uint8", (3, 16, 16))], 64, num_shards=2)
    return root


@pytest.fixture
def script(root: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python code in a process of its own, with the dataset as its argument; it may import worker_functions."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: object) -> subprocess.Popen[str]:
        paths = os.pathsep.join([str(HERE), str(REPOSITORY)])
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(root), *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def pids_of(process: subprocess.Popen[str]) -> list[int]:
    """The process prints them in a line."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return [int(word) for word in line.split()]


def wait_until_gone(pids: list[int]) -> None:
    """The tests of a hang have a timeout."""
    while any(is_there(pid) for pid in pids):
        time.sleep(0.02)


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # whoever has adopted it has not looked yet


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

BEGUN = """
    import os, signal, sys, time, worker_functions
    from precompile import CompiledDataset, Loader
    dataset = CompiledDataset(sys.argv[1], fields="image", transform=getattr(worker_functions, sys.argv[2]))
    loader = Loader(dataset, 4, workers=2, start_method=sys.argv[3])
    stream = iter(loader)
"""
PRINT_PIDS = """
    next(stream)
    print(*(pid for _, pid in loader.watched_processes()), flush=True)
"""


@needs_proc
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_end_when_their_parent_is_killed(script: Callable[..., subprocess.Popen[str]], method: str) -> None:
    code = BEGUN + PRINT_PIDS + "    sys.stdin.read()"
    process = script(code, "same", method)
    pids = pids_of(process)
    assert len(pids) == 2
    process.kill()
    process.wait()
    wait_until_gone(pids)


@needs_proc
def test_a_worker_that_hangs_ends_with_its_parent(script: Callable[..., subprocess.Popen[str]]) -> None:
    code = (
        BEGUN
        + """
    import threading
    threading.Thread(target=next, args=(stream,), daemon=True).start()
    while len(loader.watched_processes()) < 2:
        time.sleep(0.01)
    print(*(pid for _, pid in loader.watched_processes()), flush=True)
    sys.stdin.read()
    """
    )
    process = script(code, "hangs_always", "fork")
    pids = pids_of(process)
    process.kill()
    process.wait()
    wait_until_gone(pids)


@needs_proc
@pytest.mark.parametrize("how", ["", "raise SystemExit(3)", "os.kill(os.getpid(), signal.SIGINT)"])
def test_a_process_ends_in_the_middle_of_an_epoch(script: Callable[..., subprocess.Popen[str]], how: str) -> None:
    code = (
        BEGUN + f"    next(stream)\n    print(*(pid for _, pid in loader.watched_processes()), flush=True)\n    {how}"
    )
    process = script(code, "same", "fork")
    pids = pids_of(process)
    _, err = process.communicate(timeout=60)
    assert process.returncode == {"": 0, "raise SystemExit(3)": 3}.get(how, -signal.SIGINT), err
    assert "Aborted" not in err
    assert not any(map(is_there, pids))


@needs_proc
def test_a_stopped_worker_does_not_keep_its_process(script: Callable[..., subprocess.Popen[str]]) -> None:
    code = (
        BEGUN
        + """
    next(stream)
    pids = [pid for _, pid in loader.watched_processes()]
    os.kill(pids[0], signal.SIGSTOP)
    print(*pids, flush=True)
    """
    )
    process = script(code, "same", "fork")
    pids = pids_of(process)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not any(map(is_there, pids))


def test_a_thread_that_hangs_does_not_keep_its_process(script: Callable[..., subprocess.Popen[str]]) -> None:
    code = """
    import sys, worker_functions
    from precompile import CompiledDataset, Loader
    from precompile.errors import LoaderStalled
    dataset = CompiledDataset(sys.argv[1], fields="image", transform=worker_functions.hangs_always)
    try:
        next(iter(Loader(dataset, 4, timeout=0.5)))
    except LoaderStalled:
        print("stalled", flush=True)
    """
    out, err = script(code).communicate(timeout=60)
    assert out == "stalled\n", err


@pytest.mark.parametrize("how", ["whole epoch", "half epoch", "not begun"])
def test_workers_end_with_their_loader(root: Path, how: str) -> None:
    dataset = CompiledDataset(root, fields="image", transform=worker_functions.same)
    Loader(dataset, 4)  # what a process shows of itself stays
    gc.collect()
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    loader = Loader(dataset, 4, workers=2, start_method="fork")
    if how == "whole epoch":
        list(loader)
    elif how == "half epoch":
        next(iter(loader))
    assert len(multiprocessing.active_children()) == (0 if how == "not begun" else 2)
    del loader
    gc.collect()
    assert not multiprocessing.active_children()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_fork_in_the_middle_of_an_epoch(root: Path) -> None:
    dataset = CompiledDataset(root, fields="image", transform=worker_functions.same)
    loader = Loader(dataset, 4, workers=2, start_method="fork", shuffle=True)
    expected = [int(batch.long().sum()) for batch in Loader(dataset, 4, shuffle=True)]
    stream = iter(loader)
    seen = [int(next(stream).long().sum()) for _ in range(3)]
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            seen += [int(batch.long().sum()) for batch in stream]
            ours = [pid for _, pid in loader.watched_processes()]
            del stream, loader
            gc.collect()
            os._exit(0 if seen == expected and ours and not any(map(is_there, ours)) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    seen += [int(batch.long().sum()) for batch in stream]
    assert seen == expected


def test_nothing_is_made_in_shared_memory_by_name(root: Path) -> None:
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    dataset = CompiledDataset(root, fields="image", transform=worker_functions.as_float)
    loader = Loader(dataset, 4, workers=2, start_method="fork")
    for _ in loader:
        names = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
        assert not [name for name in names - before if name.startswith(("torch", "precompile-batch"))]


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_start_methods(script: Callable[..., subprocess.Popen[str]], method: str) -> None:
    """The same batches; an exception, and workers that go on; what cannot be pickled is said before anything starts."""
    code = """
    import sys, torch, worker_functions
    from precompile import CompiledDataset, Loader
    if __name__ == "__main__":
        dataset = CompiledDataset(sys.argv[1], fields="image", transform=worker_functions.noisy)
        loader = Loader(dataset, 4, workers=2, start_method=sys.argv[2], shuffle=True)
        expected = list(Loader(dataset, 4, workers=1, start_method="fork", shuffle=True))
        found = list(loader)
        assert all(map(torch.equal, found, expected)) and len(found) == len(expected)
        pids = loader.watched_processes()
        assert len(list(loader)) == 16 and loader.watched_processes() == pids
        dataset = CompiledDataset(sys.argv[1], fields="image", transform=lambda image: image)
        try:
            list(Loader(dataset, 4, workers=2, start_method=sys.argv[2]))
        except Exception as error:
            assert "pickle" in str(error).lower(), error
            assert any("start_method" in note for note in error.__notes__), error.__notes__
            print("all as expected")
    """
    out, err = script(code, method).communicate(timeout=120)
    assert out == "all as expected\n", err
