"""What a build costs when nothing changed, against a plain listing of the same tree (os.scandir, stat of every file).

    python scripts/benchmarks/noop.py                        # 100,000 png of about 1 kB in 100 folders

Listing and build run in turn, once a round; figures are medians. Each build is a process of its own, which counts from
the moment its libraries are imported and tells its peak memory. The first listing warms the caches and is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from machine_line import machine_line
from PIL import Image

import precompile

FILES_A_FOLDER = 1000
KEYS = {"size": 8, "crop": 8}


def make_files(root: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(count):
        folder = root / f"class{number // FILES_A_FOLDER:03d}"
        if number % FILES_A_FOLDER == 0:
            folder.mkdir(parents=True)
            Image.fromarray(rng.integers(0, 256, (18, 18, 3), dtype=np.uint8)).save(folder / "first.png")
            content = (folder / "first.png").read_bytes()
            (folder / "first.png").unlink()
        (folder / f"{number:06d}.png").write_bytes(content)


def list_tree(folder: str) -> int:
    count = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                count += list_tree(entry.path)
            else:
                entry.stat()
                count += 1
    return count


def build_again(scratch: Path) -> None:
    """Prints seconds and peak bytes of a build of what was built before; a tiny one comes first, for its imports."""
    precompile.build(scratch / "tiny", scratch / "tiny.pc", quiet=True, **KEYS)
    began = time.perf_counter()
    summary = precompile.build(scratch / "raw", scratch / "raw.pc", quiet=True, **KEYS)
    seconds = time.perf_counter() - began
    assert summary.compiled == 0, summary
    print(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes()}))


def peak_bytes() -> int:
    """Of this process. Its ru_maxrss would count the parent's memory too, from between fork and exec."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--build-again", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build_again:
        build_again(options.build_again)
        return
    with tempfile.TemporaryDirectory(dir=options.dir) as scratch:
        run(options, Path(scratch))


def run(options: argparse.Namespace, scratch: Path) -> None:
    make_files(scratch / "raw", options.files)
    make_files(scratch / "tiny", 1)
    for name in ("raw", "tiny"):
        precompile.build(scratch / name, scratch / f"{name}.pc", quiet=True, **KEYS)
    assert list_tree(str(scratch / "raw")) == options.files
    listing, again, peaks = [], [], []
    for _ in range(options.rounds):
        began = time.perf_counter()
        list_tree(str(scratch / "raw"))
        listing.append(time.perf_counter() - began)
        command = [sys.executable, __file__, "--build-again", str(scratch)]
        done = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        again.append(done["seconds"])
        peaks.append(done["peak_bytes"])
    print(machine_line("numpy", "pillow"))
    print(f"{options.files:,} png of about 1 kB, {options.rounds} rounds")
    print(f"listing                {statistics.median(listing):>8.3f} s")
    print(f"build, nothing changed {statistics.median(again):>8.3f} s, peak memory {max(peaks) / 1e6:,.0f} MB")
    ratios = [a / b for a, b in zip(again, listing)]
    print(f"build / listing        {statistics.median(ratios):>8.2f}   (from {min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
