"""Show how preparing samples in workers hangs or crawls, and that reading a compiled dataset does not.

    python scripts/reproduce_hang.py [--samples 320] [--time-limit 10]

Three measurements on pictures that it makes itself, in less than two minutes:

1. A parent runs one torch operation of several threads; its forked child runs another (a copy of 45 MB). The
   child inherits OpenMP's team of threads without the threads, waits for them, and is killed at the time limit.
2. Two workers decode jpg and resize by torch, with two threads each that spin while they wait
   (OMP_WAIT_POLICY=ACTIVE), as against one thread each: more threads than cores, fewer images.
3. The parent of (1), with two forked workers that read a compiled dataset: the epoch completes.

Needs precompile with Pillow and torch, and a platform that can fork.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image
from torch.utils.data import DataLoader

import precompile

TRIES = 4
PARENT_THREADS = 4
HEIGHT, WIDTH, SIZE = 375, 500, 224
FORK = multiprocessing.get_context("fork")


def use_many_threads() -> torch.Tensor:
    """A torch operation on 45 MB, which torch shares among its threads."""
    return torch.zeros(45_000_000, dtype=torch.uint8).clone()


def hung(time_limit: float) -> bool:
    """Whether a forked child that runs the parent's operation again had to be killed."""
    use_many_threads()
    child = FORK.Process(target=use_many_threads)
    child.start()
    child.join(time_limit)
    if child.exitcode is not None:
        return False
    child.kill()
    child.join()
    return True


def make_photos(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(folder / f"{number:04d}.jpg", quality=90)


class OnTheFly(torch.utils.data.Dataset[torch.Tensor]):
    """Decodes and resizes a jpg whenever a sample is asked for."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as image:
            pixels = torch.from_numpy(np.array(image.convert("RGB")))
        batch = pixels.permute(2, 0, 1)[None].float() / 255
        return torch.nn.functional.interpolate(batch, (SIZE, SIZE), mode="bilinear", antialias=True)[0]


def decode_on_the_fly(folder: Path, threads: int) -> float:
    """Images per second of two workers. To be run in a process of its own, which has used no torch threads yet."""

    def set_threads(_: int) -> None:
        torch.set_num_threads(threads)

    loader = DataLoader(OnTheFly(folder), 8, num_workers=2, worker_init_fn=set_threads, multiprocessing_context="fork")
    images = iter(loader)
    first = len(next(images))
    began = time.perf_counter()
    rest = sum(len(batch) for batch in images)
    assert first + rest == len(loader.dataset)  # type: ignore[arg-type]
    return rest / (time.perf_counter() - began)


def measured_apart(folder: Path, threads: int, time_limit: float) -> str:
    command = [sys.executable, __file__, "--decode", str(folder), "--threads", str(threads)]
    environment = {**os.environ, "OMP_WAIT_POLICY": "ACTIVE", "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=time_limit, check=True)
    except subprocess.TimeoutExpired:
        return f"not finished after {time_limit:.0f} s"
    return f"{float(done.stdout):,.0f} images/s"


def read_compiled(root: Path, epochs: int, time_limit: float) -> str:
    """Samples per second of two forked workers whose parent has just used many threads."""
    dataset = precompile.CompiledDataset(root, fields=("image", "label"))
    loader = DataLoader(dataset, 32, num_workers=2, collate_fn=dataset.collate, persistent_workers=True,
                        timeout=time_limit, multiprocessing_context="fork")  # fmt: skip
    use_many_threads()
    assert sum(len(label) for _, label in loader) == len(dataset)
    began = time.perf_counter()
    count = sum(len(label) for _ in range(epochs) for _, label in loader)
    return f"{count / (time.perf_counter() - began):,.0f} samples/s, {epochs + 1} epochs completed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=320, help="pictures to make (default: 320)")
    parser.add_argument(
        "--time-limit", type=float, default=10.0, help="seconds after which a child hangs (default: 10)"
    )
    parser.add_argument("--decode", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.decode is not None:
        print(decode_on_the_fly(arguments.decode, arguments.threads))
        return
    torch.set_num_threads(PARENT_THREADS)
    cpus = len(os.sched_getaffinity(0))
    print(f"{cpus} CPUs, {platform.system()} {platform.machine()}, Python {platform.python_version()}, "
          f"torch {torch.__version__}, Pillow {PIL.__version__}, precompile {precompile.__version__}")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="reproduce-hang-") as folder:
        report(Path(folder), arguments.samples, arguments.time_limit)


def report(folder: Path, samples: int, time_limit: float) -> None:
    photos, compiled = folder / "raw" / "photo", folder / "photos.pc"
    photos.parent.mkdir()
    make_photos(photos, samples)
    hangs = sum(hung(time_limit) for _ in range(TRIES))
    row("torch operation of several threads in a forked child", f"{hangs} of {TRIES} hang")
    for threads in (1, 2):
        what = f"2 workers decode jpg on the fly, {threads} torch thread{'s' * (threads > 1)} each"
        row(what, measured_apart(photos, threads, 3 * time_limit))
    precompile.build(photos.parent, compiled, size=256, crop=SIZE, quiet=True)
    row("2 workers read the compiled dataset, same parent", read_compiled(compiled, 10, 3 * time_limit))


def row(what: str, result: str) -> None:
    print(f"{what:<58}{result}", flush=True)


if __name__ == "__main__":
    main()
