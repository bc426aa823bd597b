"""scripts/benchmarks/peers: the runner at toy size with peers that need no package of their own, and what it checks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from builds import REPOSITORY

PEERS = REPOSITORY / "scripts" / "benchmarks" / "peers"
sys.path.append(str(PEERS))

from peer_protocol import Batch, check  # noqa: E402

WORKERS = ["num_workers=0, 1 thread", "num_workers=0, 2 threads", "num_workers=2"]
CASES = {
    "reference": ["numpy.take, dense"],
    "precompile": ["Loader, flat", "Loader, lmdb"],
    "numpy_memmap": ["loop", "num_workers=2"],
    "lmdb_pickles": WORKERS,
    "image_folder": WORKERS,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict[str, object]]:
    """One run at toy size: a peer whose packages are missing (no site-packages at all), one that ends at once."""
    folder = tmp_path_factory.mktemp("peers")
    bare, broken = folder / "bare", folder / "broken"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    broken.write_text("#!/bin/sh\necho out of order >&2\nexit 3\n")
    for script in (bare, broken):
        script.chmod(0o755)
    command = [
        sys.executable, PEERS / "run.py", "--samples", "40", "--side", "16", "--batch-size", "16", "--rounds", "1",
        "--min-seconds", "0", "--dir", folder, "--json", folder / "figures.json",
        "--python", f"webdataset={bare}", "--python", f"hf_datasets={broken}",
        "--only", "webdataset", "hf_datasets", "numpy_memmap", "lmdb_pickles", "image_folder",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert {path.name for path in folder.iterdir()} == {"bare", "broken", "figures.json"}, done.stderr
    return done, json.loads((folder / "figures.json").read_text())


def test_installed_peers_are_timed_beside_the_loader(run: tuple[object, dict[str, list[dict[str, object]]]]) -> None:
    _, figures = run
    assert [(case["peer"], case["case"]) for case in figures["cases"]] == [
        (peer, case) for peer, cases in CASES.items() for case in cases
    ]
    assert all(len(case["rates"]) == 1 and case["samples_per_second"] > 0 for case in figures["cases"])
    reference = figures["cases"][0]["samples_per_second"]
    assert all(case["ratio"] == pytest.approx(case["samples_per_second"] / reference) for case in figures["cases"])
    assert figures["cases"][5]["versions"].keys() == {"lmdb"}


def test_a_missing_peer_is_skipped_with_a_line(run: tuple[subprocess.CompletedProcess[str], dict[str, object]]) -> None:
    done, figures = run
    wanted = (
        "skipped: webdataset is not installed (pip install -r scripts/benchmarks/peers/requirements/webdataset.txt)"
    )
    assert wanted in done.stdout.splitlines()
    assert figures["skipped"] == ["webdataset"]


def test_a_failing_peer_is_named_and_the_others_run(
    run: tuple[subprocess.CompletedProcess[str], dict[str, object]],
) -> None:
    done, figures = run
    assert "failed: hf_datasets: out of order" in done.stdout.splitlines()
    assert figures["failed"] == {"hf_datasets": "out of order"}
    assert done.returncode == 1


@pytest.mark.parametrize("given", ["ffcv", "ffcv=/no/such/python", f"fcv={sys.executable}"])
def test_an_interpreter_that_cannot_be_is_refused(given: str) -> None:
    done = subprocess.run(
        [sys.executable, PEERS / "run.py", "--python", given], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "must be NAME=PATH of a program, NAME of ffcv, numpy_memmap" in done.stderr
    assert f"got {given}" in done.stderr


def test_every_peer_has_requirements_and_none_hides_the_package_it_imports() -> None:
    files = {path.stem for path in PEERS.glob("*.py")}
    assert {path.stem for path in (PEERS / "requirements").iterdir()} == {
        "ffcv", "hf_datasets", "image_folder", "litdata", "lmdb_pickles", "mosaic_streaming", "numpy_memmap",
        "webdataset",
    }  # fmt: skip
    assert not files & {"ffcv", "datasets", "torchvision", "litdata", "lmdb", "streaming", "numpy", "webdataset"}


ROWS = np.random.default_rng(0).integers(0, 256, (20, 3, 4, 4), dtype=np.uint8)
ORDER = np.random.default_rng(1).permutation(20)


def epoch(order: np.ndarray, rows: np.ndarray = ROWS) -> Iterator[Batch]:
    for labels in np.array_split(order, 3):
        yield torch.from_numpy(rows[labels]), torch.from_numpy(labels)


def test_a_right_epoch_passes() -> None:
    assert check(epoch(ORDER), 20, ROWS.__getitem__) == 20


def test_an_epoch_in_reused_buffers_passes() -> None:
    images, labels = np.empty((20, 3, 4, 4), np.uint8), np.empty(20, np.int64)

    def reusing() -> Iterator[Batch]:
        for part in np.array_split(ORDER, 3):
            images[: len(part)], labels[: len(part)] = ROWS[part], part
            yield torch.from_numpy(images[: len(part)]), torch.from_numpy(labels[: len(part)])

    assert check(reusing(), 20, ROWS.__getitem__) == 20


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (epoch(ORDER[:-2]), "each of 20 samples must come once: 2 are missing, 0 come again"),
        (epoch(np.append(ORDER, ORDER[:1])), "0 are missing, 1 come again"),
        (epoch(np.arange(20)), "shuffled order, got them as they are stored"),
        (epoch(ORDER, np.roll(ROWS, 1, axis=0)), "images have other pixels, the first with label"),
        (epoch(ORDER, ROWS[:, :, :2]), r"must be uint8 \(7, 3, 4, 4\), got torch.uint8 \(7, 3, 2, 4\)"),
        (epoch(ORDER, ROWS.astype(np.int16)), "got torch.int16"),
    ],
)
def test_a_wrong_epoch_is_refused(batches: Iterator[Batch], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(batches, 20, ROWS.__getitem__)
