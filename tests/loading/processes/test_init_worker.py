"""init_worker in torch's DataLoader, with every way of starting workers."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from precompile.loading.processes.init_worker import init_worker

REPOSITORY = Path(__file__).resolve().parents[3]
METHODS = ("fork", "forkserver", "spawn")
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")

# All loaders start before one is waited for: spawned workers import torch for seconds. The names of samples are
# names of methods.
SCRIPT = """
import ctypes, functools, json, os, sys, threading
import numpy, torch
from torch.utils.data import DataLoader, Dataset
from precompile.loading.processes import activity, purity
from precompile.loading.processes.init_worker import init_worker

def multiply():
    numpy.ones((700, 700)) @ numpy.ones((700, 700))
    torch.ones(700, 700) @ torch.ones(700, 700)
    torch.zeros(45_000_000, dtype=torch.uint8).clone()

def num_threads():
    return len(os.listdir("/proc/self/task")) - (threading.active_count() - 1)

class Steps(Dataset):
    def __init__(self, *names, decoded=False):
        self.names, self.decoded = names, decoded
    def __len__(self):
        return len(self.names)
    def __getitems__(self, indices):
        samples = [getattr(self, self.names[index])() for index in indices]
        if purity.is_strict:
            purity.check()
        return samples
    def __setstate__(self, state):
        self.__dict__ = state
        if self.decoded:
            import soundfile
    def begins(self):
        return activity.page is not None
    def multiplies(self):
        multiply()
        return num_threads()
    def resizes(self):
        import cv2
        cv2.GaussianBlur(numpy.zeros((2000, 2000, 3), numpy.uint8), (31, 31), 3)
        return num_threads()
    def starts_a_thread(self):
        libc = ctypes.CDLL(None)
        libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)
    def imports(self):
        import soundfile  # HERE
    def hides(self):
        try:
            import soundfile
        except Exception:
            pass

def one_by_one(steps, method, init):
    options = dict(num_workers=1, multiprocessing_context=method, worker_init_fn=init, timeout=60)
    return iter(DataLoader(steps, 1, collate_fn=first, **options))

def first(samples):
    return samples[0]

def outcomes(batches, count):
    for _ in range(count):
        try:
            yield next(batches)
        except Exception as error:
            yield [type(error).__name__, str(error)]

def main(method):
    multiply()
    strict = functools.partial(init_worker, strict=True)
    pure = Steps("begins", "multiplies", "resizes")
    impure = Steps("begins", "multiplies", "starts_a_thread", "imports", "begins")
    running = {
        "pure": (one_by_one(pure, method, init_worker), 3),
        "impure": (one_by_one(impure, method, strict), 5),
        "hiding": (one_by_one(Steps("hides"), method, strict), 1),
        "uninitialised": (one_by_one(Steps("begins", "multiplies", "resizes", "imports"), method, None), 4),
    }
    import soundfile
    running["decoded"] = one_by_one(Steps("begins", decoded=True), method, strict), 1
    print(json.dumps({name: list(outcomes(*batches)) for name, batches in running.items()}))

if __name__ == "__main__":
    main(sys.argv[1])
"""


@pytest.fixture(scope="module", params=METHODS)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the loaders of SCRIPT gave: a value, or [class, message], for each batch; and how workers were started."""
    script = tmp_path_factory.mktemp("script") / "train.py"
    script.write_text(SCRIPT)
    many = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "4")
    done = subprocess.run(
        [sys.executable, str(script), request.param], capture_output=True, text=True, timeout=120,
        env={**os.environ, **many, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {"method": request.param, "script": script, **json.loads(done.stdout)}


def test_libraries_have_one_thread(seen: dict[str, Any]) -> None:
    assert seen["pure"] == [True, 1, 1]
    assert max(seen["uninitialised"][1:3]) > 1


def test_a_strict_worker_may_compute(seen: dict[str, Any]) -> None:
    assert seen["impure"][:2] == [True, 1]


def test_threads_of_libraries_reach_the_user_as_an_error(seen: dict[str, Any]) -> None:
    kind, message = seen["impure"][2]
    assert kind == "ImpureWorkerError"
    assert re.search(r"strict worker \S+ \(pid \d+\) has threads that compiled libraries started \(1 named", message)
    assert re.search(r"Loaded libraries that start threads: .*libgomp", message)


def test_an_import_reaches_the_user_as_an_error(seen: dict[str, Any]) -> None:
    kind, message = seen["impure"][3]
    line = 1 + SCRIPT[: SCRIPT.index("# HERE")].count("\n")
    assert kind == "ImpureWorkerError"
    assert re.search(rf"imports soundfile at {re.escape(str(seen['script']))}:{line}, but only reads memory", message)
    assert seen["impure"][4][0] == "ImpureWorkerError"


def test_an_error_that_the_worker_caught_reaches_the_user(seen: dict[str, Any]) -> None:
    (kind, message), *_ = seen["hiding"]
    assert kind == "ImpureWorkerError"
    assert "imports soundfile at" in message


def test_a_decoder_that_is_there_already_is_refused_at_once(seen: dict[str, Any]) -> None:
    (kind, message), *_ = seen["decoded"]
    by_fork, otherwise = "the parent had imported it before it forked", "imported while the worker started"
    likely = by_fork if seen["method"] == "fork" else otherwise
    assert kind == "ImpureWorkerError"
    assert re.search(f"has soundfile imported already.*Most likely.*{likely}", message)


def test_a_worker_that_promised_nothing_may_import(seen: dict[str, Any]) -> None:
    assert seen["uninitialised"][3] is None


@pytest.mark.parametrize("init", [init_worker, partial(init_worker, strict=True)])
def test_it_pickles_by_name(init: Any) -> None:
    copy = pickle.loads(pickle.dumps(init))
    assert getattr(copy, "func", copy) is init_worker
    assert getattr(copy, "keywords", {}) == getattr(init, "keywords", {})


def test_it_imports_nothing_that_it_limits() -> None:
    code = (
        "import sys; from precompile.loading.processes.init_worker import init_worker\n"
        "init_worker(3); init_worker(strict=True); init_worker(strict=True); init_worker()\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert {"torch", "numpy", "cv2", "PIL"}.isdisjoint(done.stdout.split())
