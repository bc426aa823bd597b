"""Whether batches arrive right on a CUDA device, how fast, and how long a training step waits for them.

    python scripts/benchmarks/gpu_check.py                   # three to five minutes; 1 GB of disk
    python scripts/benchmarks/gpu_check.py --only races contents
    python scripts/benchmarks/gpu_check.py --json figures.json

races      copies that run late, on purpose; the check must find out queues that leave out what prevents a race
contents   checksums of every batch against direct reads, over epochs with long kernels before a batch is read
rates      samples per second into the device, against copies of as many bytes from pinned memory, in turn
training   the share of a step of ResNet-50 in bfloat16 that the device waits for data (needs torchvision)

Exit status: 0 when all checks passed, 1 when one failed, 2 when there is no CUDA device or an argument is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from machine_line import machine_line
from on_gpu.contents import FIELDS, check_contents
from on_gpu.gpu import Gpu
from on_gpu.races import check_races
from on_gpu.rates import check_rates
from on_gpu.settings import Row, Settings
from on_gpu.training import check_training
from reading import sets
from synthetic import RandomImages

import precompile
from precompile.format.schema import FieldSpec
from precompile.loading.devices.device import usable_device

SPECTROGRAM = FieldSpec("spectrogram", "float16", (80, None))
PARTS = ("races", "contents", "rates", "training")


def main() -> None:
    options = parse()
    try:
        settings = settings_of(options)
        gpu = Gpu(usable_device("cuda"))
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    machine = f"{gpu.name}; {machine_line('precompile', 'torch', 'numpy')}"
    print(f"{machine}\n{settings.samples:,} images of 3x{settings.side}x{settings.side}, batch {settings.batch_size}")
    rows = []
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="precompile-") as folder:
        for row in run(gpu, settings, options.only, Path(folder)):
            print(f"{row.what:<62} {row.found:<52} {row.verdict}".rstrip(), flush=True)
            rows.append(row)
    passed = all(row.passed is not False for row in rows)
    if options.json:
        found = {
            "machine": machine,
            "passed": passed,
            "settings": settings.to_json(),
            "rows": [row.to_json() for row in rows],
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    raise SystemExit(0 if passed else 1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these only")
    parser.add_argument("--samples", type=int, help="images (default: 4096)")
    parser.add_argument("--batch-size", type=int, help="default: 256")
    parser.add_argument("--train-batch-size", type=int, help="default: 128")
    parser.add_argument("--rounds", type=int, help="of the rates (default: 7)")
    parser.add_argument("--steps", type=int, help="of training (default: 80)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--dir", type=Path, help="where to build the datasets (default: a temporary folder)")
    return parser.parse_args()


def settings_of(options: argparse.Namespace) -> Settings:
    names = {field.name for field in fields(Settings)}
    return Settings(**{name: value for name, value in vars(options).items() if name in names and value is not None})


def run(gpu: Gpu, settings: Settings, only: Sequence[str], folder: Path) -> Iterator[Row]:
    began = time.perf_counter()
    images, spectrograms = build(settings, folder)
    yield Row("built", f"{time.perf_counter() - began:.0f} s")
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "races": lambda: check_races(gpu, settings),
        "contents": lambda: check_contents(gpu, images, spectrograms, settings),
        "rates": lambda: check_rates(gpu, images, settings),
        "training": lambda: check_training(gpu, images, settings),
    }
    for name in PARTS:
        if name in only:
            yield from parts[name]()


def build(settings: Settings, folder: Path) -> tuple[precompile.CompiledDataset, precompile.CompiledDataset]:
    source = RandomImages(settings.samples, settings.side, settings.side)
    precompile.build(source, folder / "images", store="flat", quiet=True)
    images = precompile.CompiledDataset(folder / "images", fields=FIELDS)
    frames = np.random.default_rng(0).integers(300, 3001, settings.spectrograms)
    return images, sets.write(folder / "spectrograms", SPECTROGRAM, settings.spectrograms, sizes=frames)


if __name__ == "__main__":
    main()
