"""limit_libraries: what is loaded already, what is loaded later, and children forked from threaded parents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from precompile.loading.processes.limits import loaded_libraries

REPOSITORY = Path(__file__).resolve().parents[3]
IN_PROC = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")

PREAMBLE = """
import os, sys, types
from precompile.loading.processes.limits import limit_libraries

def num_threads():
    return len(os.listdir("/proc/self/task"))

def in_child(work):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            limit_libraries()
            work()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(pid, 0)
"""


def printed(code: str) -> list[str]:
    """What code prints in a process whose libraries are told to use four threads; a hang is an error."""
    many = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"), "4")
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code], capture_output=True, text=True, timeout=60, cwd=REPOSITORY, env=many
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@IN_PROC
def test_libraries_that_are_loaded_later_start_no_threads() -> None:
    code = """
limit_libraries()
import numpy, cv2
numpy.ones((700, 700)) @ numpy.ones((700, 700))
cv2.GaussianBlur(numpy.zeros((2000, 2000, 3), numpy.uint8), (31, 31), 3)
print(num_threads(), cv2.getNumThreads(), cv2.ocl.useOpenCL())
"""
    assert printed(code) == ["1", "1", "False"]


@IN_PROC
def test_libraries_that_run_threads_already_start_no_more() -> None:
    code = """
import numpy
numpy.ones((700, 700)) @ numpy.ones((700, 700))
print(num_threads() > 1)
limit_libraries()
print(num_threads())
numpy.ones((700, 700)) @ numpy.ones((700, 700))
print(num_threads())
"""
    assert printed(code) == ["True", "1", "1"]


@IN_PROC
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_child_forked_from_busy_libraries_neither_hangs_nor_starts_threads() -> None:
    code = """
import cv2, numpy, torch
def work():
    numpy.ones((700, 700)) @ numpy.ones((700, 700))
    torch.zeros(45_000_000, dtype=torch.uint8).clone()
    cv2.GaussianBlur(numpy.zeros((2000, 2000, 3), numpy.uint8), (31, 31), 3)
def worked():
    work()
    print(num_threads(), torch.get_num_threads())
work()
print(num_threads() > 1)
in_child(worked)
in_child(lambda: in_child(worked))
"""
    assert printed(code) == ["True", "1", "1", "1", "1"]


def test_modules_that_are_imported_are_told() -> None:
    code = """
def told(name, function):
    sys.modules[name] = types.ModuleType(name)
    setattr(sys.modules[name], function, lambda number: print(f"{name}={number}"))
told("numexpr", "set_num_threads")
told("mkl", "set_num_threads")
told("numba", "set_num_threads")
limit_libraries()
print(os.environ["NUMBA_NUM_THREADS"])
del os.environ["NUMBA_NUM_THREADS"]
sys.modules["numba.np.ufunc.parallel"] = types.SimpleNamespace(_is_initialized=True)
limit_libraries()
print("NUMBA_NUM_THREADS" in os.environ)
"""
    first = ["numexpr=1", "mkl=1", "1"]
    assert printed(code) == [*first, "numba=1", "numexpr=1", "mkl=1", "False"]


def test_modules_without_the_function_are_left_alone() -> None:
    code = "sys.modules['mkl'] = types.ModuleType('mkl'); limit_libraries(); print(os.environ['MKL_NUM_THREADS'])"
    assert printed(code) == ["1"]


def test_without_proc_no_library_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert loaded_libraries() == []
