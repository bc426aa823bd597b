"""Other loaders beside precompile's: the same pixels, shuffled epochs, warm, in turn.

    python scripts/benchmarks/peers/run.py                                  # 6,000 x 3x224x224, batch 256
    python scripts/benchmarks/peers/run.py --side 32 --samples 50000
    python scripts/benchmarks/peers/run.py --only lmdb_pickles ffcv --python ffcv=/path/to/its/python --json F

Peers whose packages are missing are skipped; peers/requirements/ has a file for each. A peer runs in a process of its
own, by the interpreter that --python names for it, else by this one. The first epoch of each case is a warm-up and is
checked: every sample once, in a shuffled order, with the right bytes. Then all cases run in turn, once a round; figures
are medians, and ratios are medians of each round's ratio to the reference of that round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmark_rows import make_rows
from peer_process import PeerFailed, PeerMissing, PeerProcess

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from machine_line import machine_line  # noqa: E402

OURS = {"reference": "reference.py", "precompile": "precompile_loader.py"}
PEERS = {
    "ffcv": "ffcv_loader.py",
    "numpy_memmap": "numpy_memmap.py",
    "hf_datasets": "hf_datasets.py",
    "lmdb_pickles": "lmdb_pickles.py",
    "litdata": "litdata_loader.py",
    "mosaic_streaming": "mosaic_streaming.py",
    "webdataset": "webdataset_loader.py",
    "image_folder": "image_folder.py",
}


@dataclass(frozen=True, slots=True)
class Case:
    peer: PeerProcess
    name: str
    rates: list[float] = field(default_factory=list)  # samples per second, one a round

    def run(self, number: int, *, min_seconds: float) -> None:
        """One round: as many epochs as take `min_seconds`. Round 0 is one epoch, checked and not counted."""
        if number == 0:
            self.peer.epoch(self.name, seed=0, check=True)
            return
        samples, seconds, epochs = 0, 0.0, 0
        while not epochs or seconds < min_seconds:
            done = self.peer.epoch(self.name, seed=1000 * number + epochs)
            samples, seconds, epochs = samples + done.samples, seconds + done.seconds, epochs + 1
        self.rates.append(samples / seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--side", type=int, default=224, help="height and width of the pictures")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--min-seconds", type=float, default=0.2, help="of each case and round")
    parser.add_argument("--only", nargs="+", choices=PEERS, metavar="NAME", help=", ".join(PEERS))
    parser.add_argument(
        "--python", action="append", type=interpreter, default=[], metavar="NAME=PATH", help="the interpreter of a peer"
    )
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    machine = machine_line("torch", "numpy")
    print(machine)
    print(f"{options.samples} x 3x{options.side}x{options.side} uint8, batch {options.batch_size}, shuffled, warm, "
          f"{options.rounds} rounds", flush=True)  # fmt: skip
    missing: list[str] = []
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=options.dir) as scratch, contextlib.ExitStack() as stack:
        peers = start(options, Path(scratch), stack, missing, failed)
        cases = [Case(peer, name) for peer in peers for name in peer.cases]
        measure(cases, failed, rounds=options.rounds, min_seconds=options.min_seconds)
    rows = figures([case for case in cases if case.peer.name not in failed])
    print_table(rows)
    if options.json:
        given = {name: getattr(options, name) for name in ("samples", "side", "batch_size", "rounds")}
        report = {"machine": machine, **given, "cases": rows, "skipped": missing, "failed": failed}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(1 if failed else 0)


def interpreter(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if name not in PEERS or shutil.which(path) is None:
        raise argparse.ArgumentTypeError(f"must be NAME=PATH of a program, NAME of {', '.join(PEERS)}, got {text}")
    return name, path


def start(
    options: argparse.Namespace,
    scratch: Path,
    stack: contextlib.ExitStack,
    missing: list[str],
    failed: dict[str, str],
) -> list[PeerProcess]:
    """The peers that are installed, with their files written; the names of the others go to `missing` and `failed`."""
    rows = scratch / "rows.npy"
    make_rows(rows, count=options.samples, side=options.side)
    interpreters = dict(options.python)
    started, ready = [], []
    for name, file in {**OURS, **{name: PEERS[name] for name in options.only or PEERS}}.items():
        command = [interpreters.get(name, sys.executable), str(HERE / file), str(rows), str(scratch / name)]
        command += ["--batch-size", str(options.batch_size)]
        peer = PeerProcess(name, command, log=scratch / f"{name}.log")
        started.append(stack.enter_context(contextlib.closing(peer)))
    for peer in started:
        try:
            peer.wait()
            ready.append(peer)
        except PeerMissing:
            missing.append(peer.name)
            print(f"skipped: {peer.name} is not installed (pip install -r {requirements(peer.name)})", flush=True)
        except PeerFailed as error:
            note_failure(peer.name, error, failed)
    return ready


def requirements(name: str) -> str:
    return os.path.relpath(HERE / "requirements" / f"{name}.txt")


def note_failure(name: str, error: PeerFailed, failed: dict[str, str]) -> None:
    failed[name] = str(error)
    print(f"failed: {name}: {error}", flush=True)
    print(error.log, file=sys.stderr)
    if name in OURS:
        sys.exit(1)


def measure(cases: list[Case], failed: dict[str, str], *, rounds: int, min_seconds: float) -> None:
    """All cases in turn, once a round, without those of peers that failed."""
    for number in range(rounds + 1):
        for case in cases:
            if case.peer.name in failed:
                continue
            try:
                case.run(number, min_seconds=min_seconds)
            except PeerFailed as error:
                note_failure(case.peer.name, error, failed)


def figures(cases: list[Case]) -> list[dict[str, Any]]:
    limit = next(case.rates for case in cases if case.peer.name == "reference")
    return [
        {
            "peer": case.peer.name,
            "case": case.name,
            "versions": case.peer.versions,
            "samples_per_second": statistics.median(case.rates),
            "ratio": statistics.median(rate / most for rate, most in zip(case.rates, limit, strict=True)),
            "rates": case.rates,
        }
        for case in cases
    ]


def print_table(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(f"{row['peer'] + ': ' + row['case']:<44} {row['samples_per_second']:>12,.0f} samples/s   "
              f"{row['ratio']:.3f} of the reference")  # fmt: skip
    versions = {f"{name} {text}" for row in rows for name, text in row["versions"].items()}
    print(f"versions: {', '.join(sorted(versions))}")


if __name__ == "__main__":
    main()
