"""A limited thread leaves torch's threads everywhere else as they were."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def run_script() -> Callable[..., str]:
    """Run Python code in a process of its own, since torch's thread count belongs to the process."""

    def run(code: str, *arguments: str) -> str:
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_only_the_limited_thread_is_limited(run_script: Callable[..., str], threads: int) -> None:
    code = """
        import sys, threading, torch
        from precompile.loading.background import background_threads
        torch.set_num_threads(int(sys.argv[1]))
        executor = background_threads()
        inside = executor.submit(torch.get_num_threads).result()
        later = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start(); thread.join()
        print(inside, torch.get_num_threads(), *later, executor.submit(torch.get_num_threads).result())
    """
    assert run_script(code, str(threads)).split() == ["1", str(threads), str(threads), "1"]


def test_the_default_is_left_alone(run_script: Callable[..., str]) -> None:
    code = """
        import threading, torch
        from precompile.loading.background import background_threads
        def in_new_thread():
            seen = []
            thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            thread.start(); thread.join()
            return seen[0]
        before = in_new_thread()
        executors = [background_threads() for _ in range(3)]
        limited = [executor.submit(torch.get_num_threads).result() for executor in executors]
        print(limited == [1, 1, 1], before == in_new_thread() == torch.get_num_threads())
    """
    assert run_script(code).split() == ["True", "True"]


def test_a_loader_leaves_torch_alone(run_script: Callable[..., str], images: tuple[Path, object]) -> None:
    code = """
        import sys, threading, torch
        from precompile import CompiledDataset, Loader
        torch.set_num_threads(3)
        seen = [torch.get_num_threads()]
        for _ in Loader(CompiledDataset(sys.argv[1]), 4):
            seen.append(torch.get_num_threads())
            thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            thread.start(); thread.join()
        print(len(seen), set(seen))
    """
    assert run_script(code, str(images[0])).split() == ["27", "{3}"]
