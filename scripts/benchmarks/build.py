"""How fast a build is: one and two workers, engines exact and fast, against a bare loop that stores nothing.

    python scripts/benchmarks/build.py                       # 4,000 photo-like jpg of about 500x375

All cases run in turn, once a round; figures are medians. A rate is counted from the moment workers are at work
to the commit, and the start-up (Python, libraries, probing) is shown beside it.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from machine_line import machine_line
from PIL import Image
from synthetic import make_photos

import precompile
from precompile.pipeline.executors.worker import THREAD_ENVIRONMENT


def bare_loop(root: Path) -> float:
    """Images per second: read, decode and resize by Pillow, crop; what one worker does, without storing anything."""
    paths = sorted(root.rglob("*.jpg"))
    began = time.perf_counter()
    for path in paths:
        picture = Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
        short = min(picture.size)
        size = (int(256 * picture.width / short), int(256 * picture.height / short))
        picture = picture.resize(size, Image.Resampling.BILINEAR)
        left, top = (picture.width - 224) // 2, (picture.height - 224) // 2
        picture.crop((left, top, left + 224, top + 224)).tobytes()
    return len(paths) / (time.perf_counter() - began)


def build(root: Path, out: Path, **options: object) -> tuple[float, float]:
    """Images per second once workers are at work, and the seconds before."""
    shutil.rmtree(out, ignore_errors=True)
    log = out.with_suffix(".log")
    log.unlink(missing_ok=True)
    began = time.time()
    summary = precompile.build(root, out, size=256, crop=224, quiet=True, log_file=log, **options)
    times = {}
    for line in log.read_text().splitlines():
        fact = json.loads(line)
        times[fact["event"]] = datetime.fromisoformat(fact["time"]).timestamp()
    return summary.compiled / (times["committed"] - times["started"]), times["started"] - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", default="lmdb")
    parser.add_argument("--dir", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--bare-loop", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare_loop:
        print(bare_loop(options.bare_loop))
        return
    with tempfile.TemporaryDirectory(dir=options.dir) as scratch:
        run(options, make_photos(Path(scratch) / "raw", count=options.images), Path(scratch) / "out")


def run(options: argparse.Namespace, root: Path, out: Path) -> None:
    cases = {
        f"{engine}, {workers} worker{'s' * (workers > 1)}": {
            "engine": engine,
            "workers": workers,
            "store": options.store,
        }
        for engine in ("exact", "fast")
        for workers in (1, 2)
    }
    rates: dict[str, list[float]] = {"bare loop (Pillow)": [], **{name: [] for name in cases}}
    startup: dict[str, list[float]] = {name: [] for name in rates}
    for _ in range(options.rounds):
        command = [sys.executable, __file__, "--bare-loop", str(root)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**THREAD_ENVIRONMENT})
        rates["bare loop (Pillow)"].append(float(done.stdout))
        for name, case in cases.items():
            rate, before = build(root, out, **case)
            rates[name].append(rate)
            startup[name].append(before)
    print(machine_line("pillow", "opencv-python-headless", "torch"))
    print(
        f"{options.images} jpg of about 500x375, shorter side 256, crop 224, {options.store}, {options.rounds} rounds"
    )
    for name, values in rates.items():
        before = f", start-up {statistics.median(startup[name]):.1f} s" if startup[name] else ""
        print(f"{name:<22} {statistics.median(values):>8,.0f} images/s{before}")
    for what, above, below in (
        ("exact: 2 workers / 1 worker", "exact, 2 workers", "exact, 1 worker"),
        ("fast: 2 workers / 1 worker", "fast, 2 workers", "fast, 1 worker"),
        ("exact, 1 worker / bare loop", "exact, 1 worker", "bare loop (Pillow)"),
        ("fast / exact, 1 worker", "fast, 1 worker", "exact, 1 worker"),
    ):
        print(f"{what:<30} {statistics.median(a / b for a, b in zip(rates[above], rates[below])):.2f}")


if __name__ == "__main__":
    main()
