"""Loader: exactly as many threads as asked for, and neither threads nor memory left behind, however an epoch ends."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from precompile.format.schema import FieldSpec

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """40 samples of 150 kB, large enough for torch to use several threads on one."""
    root = tmp_path_factory.mktemp("large") / "x.pc"
    fields = [FieldSpec("image", "uint8", (150_000,)), FieldSpec("label", "int64", ())]
    request.getfixturevalue("write_dataset")(root, fields, 40, num_shards=2)
    return root


@pytest.fixture
def run_script(large: Path) -> Callable[..., list[str]]:
    """Run Python code in a process of its own, with the dataset as its argument; returns the words it printed."""

    def run(code: str, *arguments: object) -> list[str]:
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(large), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=REPOSITORY)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc/self/task here")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_exactly_so_many_threads(run_script: Callable[..., list[str]], threads: int) -> None:
    code = """
        import os, sys, torch
        from precompile import CompiledDataset, Loader
        torch.set_num_threads(4)
        torch.zeros(1_000_000).sqrt()  # the OpenMP team of this thread is up
        def count():
            return len(os.listdir("/proc/self/task"))
        dataset, before = CompiledDataset(sys.argv[1], fields="image"), count()
        def settled(expected):
            while count() != expected:  # the kernel may show a thread for a moment after it ended
                os.sched_yield()
            return True
        stream = iter(Loader(dataset, 2, sampler=list(range(40)) * 50, threads=int(sys.argv[2]), prefetch=64))
        next(stream)
        assert settled(before + int(sys.argv[2]))
        for _ in range(100):
            next(stream)
        assert settled(before + int(sys.argv[2]))
        del stream
        assert settled(before)
        for _ in Loader(dataset, 2, prefetch=0):
            assert count() == before
        print(torch.get_num_threads())
    """
    assert run_script(code, threads) == ["4"]


ENDINGS = {
    "an exception of the consumer": """
        try:
            for number, _ in enumerate(loader):
                if number == 2:
                    raise RuntimeError
        except RuntimeError:
            pass
    """,
    "ctrl-C": """
        try:
            for number, _ in enumerate(loader):
                if number == 2:
                    signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            pass
    """,
    "an exception in a transform": """
        def fails(image):
            if image[0] % 3 == 0:
                raise ValueError
            return image
        loader = Loader(CompiledDataset(sys.argv[1], fields="image", transform=fails), 2, threads=2)
        try:
            list(loader)
        except ValueError:
            pass
    """,
    "a dropped iterator": """
        stream, other = iter(loader), iter(loader)
        next(stream), next(other)
        del stream, other
    """,
    "an iterator in a cycle": """
        cycle = [iter(loader)]
        cycle.append(cycle)
        next(cycle[0])
        del cycle
        gc.collect()
    """,
    "a fork in the middle": """
        stream = iter(loader)
        next(stream)
        child = os.fork()
        if child == 0:
            os._exit(0 if len(list(stream)) == 19 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(stream)) == 19
        del stream
    """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_left_behind(run_script: Callable[..., list[str]], ending: str) -> None:
    body = textwrap.indent(textwrap.dedent(ENDINGS[ending]), " " * 12)
    code = f"""
        import gc, os, signal, sys, threading
        from precompile import CompiledDataset, Loader

        def memory():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        dataset = CompiledDataset(sys.argv[1], fields="image")

        def interrupted():
            loader = Loader(dataset, 2, threads=2)
{body}
        for _ in range(6):
            interrupted()
        before = memory()
        for _ in range(60):
            interrupted()
        left = [thread for thread in threading.enumerate() if thread.name.startswith("precompile")]
        for thread in left:
            thread.join(60)
        print(sum(thread.is_alive() for thread in left), memory() - before < 20_000_000 or memory() - before)
    """
    assert run_script(code) == ["0", "True"]


@pytest.mark.parametrize("count", [12, pytest.param(50, marks=pytest.mark.long)])
def test_processes_exit_cleanly_in_the_middle_of_an_epoch(run_script: Callable[..., list[str]], count: int) -> None:
    code = """
        import os, sys
        from precompile import CompiledDataset, Loader
        children = 0
        for number in range(int(sys.argv[2])):
            child = os.fork()
            if child == 0:
                break
            children += os.waitpid(child, 0)[1] == 0
        else:
            print(children)
            os._exit(0)
        stream = iter(Loader(CompiledDataset(sys.argv[1], fields="image"), 2, threads=1 + number % 3, prefetch=8))
        held = next(stream)
    """
    # the children are ordinary interpreters: each runs its exit handlers with copies under way
    found = run_script(code.replace("os._exit(0)", "sys.stdout.flush(); os._exit(0)"), count)
    assert found == [str(count)]


def test_a_thousand_epochs(run_script: Callable[..., list[str]]) -> None:
    code = """
        import sys, numpy as np, torch
        from precompile import CompiledDataset, Loader
        dataset = CompiledDataset(sys.argv[1], fields="label")
        images = CompiledDataset(sys.argv[1], fields=("image", "label"))
        expected = torch.stack([images[index][0][:4096] for index in range(40)])
        rng = np.random.default_rng(0)
        loaders = [Loader(images, size, shuffle=True, threads=threads, prefetch=prefetch)
                   for size, threads, prefetch in ((16, 1, 3), (7, 2, 4), (40, 1, 1), (9, 1, 0))]
        kept, wrong = [], 0
        for epoch in range(1000):
            loader = loaders[epoch % len(loaders)]
            loader.set_epoch(epoch)
            for batch, labels in loader:
                if rng.random() < 0.1:
                    kept.append((batch[:2], batch[:2, :4096].clone()))
                elif rng.random() < 0.3:
                    batch.zero_()
                if len(kept) > 12:
                    held, was = kept.pop(int(rng.integers(12)))
                    wrong += not torch.equal(held[:, :4096], was)
                if rng.random() < 0.02:
                    break
        wrong += sum(not torch.equal(held[:, :4096], was) for held, was in kept)
        print(wrong)
    """
    assert run_script(code) == ["0"]
