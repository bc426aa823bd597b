"""scripts/benchmarks/read.py: every case runs, at toy size, and what the figures rest on is what it says."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from builds import REPOSITORY

import precompile
from precompile.format.schema import FieldSpec

BENCHMARKS = REPOSITORY / "scripts" / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import read  # noqa: E402
from reading import page_cache, references, sets  # noqa: E402
from reading.comparison import Comparison  # noqa: E402
from reading.private_memory import private_bytes  # noqa: E402
from reading.question import Answer, CannotMeasure, Question  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="measures with the means of Linux")

ASKED = {
    "flat-224": "≥ 0.92", "flat-224-2-threads": "≥ 0.85", "lmdb-224": "≥ 0.9", "center-crop": "≥ 0.75",
    "dataloader": "≥ 0.85", "workers-224": "≥ 0.9", "workers-32": "≥ 10", "watch": "≥ 0.99",
    "busy-flat": "≤ 1.1", "busy-lmdb": "≤ 1.1", "shards": "",
    "shm-flat-224": "≥ 0.8", "shm-flat-224-2-threads": "≥ 0.8", "shm-lmdb-224": "≥ 0.8",
    "flat-32": "≥ 0.85", "lmdb-32": "≥ 0.8", "spectrograms": "≥ 0.7", "open-1e6": "≤ 50 ms", "open-1e8": "≤ 500 ms",
    "workers": "≤ 2 MB", "cold-shuffle": "≥ 0.75", "cold-block": "≥ 0.85",
}  # fmt: skip


def test_all_cases_run_and_tell_their_figures_as_json(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, BENCHMARKS / "read.py", "--toy", "--json", figures, "--dir", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    assert f"torch {torch.__version__.split('+')[0]}" in found["machine"]
    assert found["settings"]["rounds"] == 1
    assert list(dict.fromkeys(row["case"] for row in found["rows"])) == list(
        dict.fromkeys(line.split()[0] for line in done.stdout.splitlines()[3:])
    )
    assert {row["case"] for row in found["rows"]} == set(ASKED)
    for row in found["rows"]:
        if row["not_measured"]:
            assert row["case"].startswith(("cold-", "shm-")), row
        else:
            assert len(row["figures"]) == 1, row
            assert np.isfinite(row["figure"]), row
            assert (row["met"] is None) == (row["at_least"] is row["at_most"] is None)
    assert list(tmp_path.iterdir()) == [figures]


def test_list_shows_what_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["read.py", "--list"])
    read.main()
    asked: dict[str, str] = {}
    for line in capsys.readouterr().out.splitlines():
        start = max(line.find("≥"), line.find("≤"))
        asked.setdefault(line.split()[0], line[start:] if start >= 0 else "")
    assert asked == ASKED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "flat-224", "flat-225"], "error: no case flat-225; choose from busy-flat, .*, workers"),
        (["--rounds", "0"], "error: rounds must be at least 1, got rounds=0"),
        (["--shards", "8,0"], r"error: shards must be at least 1, got shards=\(8, 0\)"),
    ],
)
def test_wrong_options_are_refused(monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    monkeypatch.setattr(sys, "argv", ["read.py", *arguments])
    with pytest.raises(SystemExit, match=message):
        read.main()


@pytest.mark.parametrize("store", ["flat", "lmdb"])
def test_datasets_can_be_read_and_their_plain_copy_has_the_same_bytes(tmp_path: Path, store: str) -> None:
    frames = np.array([3, 1, 4, 1, 5])
    spec = FieldSpec("spectrogram", "float16", (80, None))
    dataset = sets.write(tmp_path / "set", spec, 5, sizes=frames, store=store, num_shards=2)
    assert [tuple(sample.shape) for sample in dataset] == [(80, number) for number in frames]
    plain = sets.plain_copy(dataset, tmp_path / "plain")
    assert plain.tobytes() == b"".join(sample.numpy().tobytes() for sample in dataset)


def test_a_sparse_dataset_opens_with_its_full_length_and_takes_no_room(tmp_path: Path) -> None:
    sets.write_sparse(tmp_path / "set", FieldSpec("image", "uint8", (3, 8, 8)), 10**9)
    assert len(precompile.CompiledDataset(tmp_path / "set", fields="image")) == 10**9
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*")) < 1e6


@pytest.mark.parametrize("threads", [1, 2])
def test_the_reference_reads_whole_batches_of_the_rows(threads: int) -> None:
    rows = np.arange(11 * 64, dtype=np.uint8).reshape(11, 64)
    with references.take(rows, 3, threads=threads)(0) as epoch:
        assert epoch() == 9


def test_pages_are_dropped_and_seen_to_be_gone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * mmap.PAGESIZE))
    assert page_cache.resident_pages(path) == (4, 4)
    try:
        page_cache.drop_pages([path])
    except CannotMeasure as error:
        pytest.skip(f"needs a disk: {error}")
    assert page_cache.resident_pages(path) == (0, 4)
    references.read_through([path])
    assert page_cache.resident_pages(path) == (4, 4)


def test_pages_that_stay_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * mmap.PAGESIZE))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[0] == mapped[-1] == 0
        with pytest.raises(CannotMeasure, match=r"of 4 pages of .* stay in memory; choose --dir on a disk"):
            page_cache.drop_pages([path])


def test_private_memory_counts_what_is_written() -> None:
    # Its own mapping: malloc may hand out pages that are resident already.
    with mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mapped:
        before = private_bytes()
        np.frombuffer(mapped, np.uint8)[:] = 1
        assert 24 << 20 < private_bytes() - before < 40 << 20


def test_the_figure_is_a_share_of_the_rate_or_a_multiple_of_the_time() -> None:
    share = Comparison(Question("a", "a", at_least=0.5), lambda data: data)
    multiple = Comparison(Question("a", "a", at_most=2), lambda data: data)
    assert share.figure(100, 400) == 0.25
    assert multiple.figure(100, 400) == 4


@pytest.mark.parametrize(
    ("question", "figures", "verdict"),
    [
        (Question("a", "a", at_least=0.5), [0.5], "met"),
        (Question("a", "a", at_least=0.5), [0.9, 0.4, 0.4], "not met"),
        (Question("a", "a", at_most=2, unit="MB"), [2.0], "met"),
        (Question("a", "a", at_most=2, unit="MB"), [2.1], "not met"),
        (Question("a", "a"), [2.1], ""),
    ],
)
def test_the_verdict_is_that_of_the_median(question: Question, figures: list[float], verdict: str) -> None:
    assert Answer(question, figures).verdict == verdict


def test_a_case_that_cannot_run_says_why() -> None:
    assert Answer(Question("a", "a", at_most=2), not_measured="no room").verdict == "not measured: no room"
