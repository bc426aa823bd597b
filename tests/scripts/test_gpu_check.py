"""scripts/benchmarks/gpu_check.py, as far as it goes without a GPU: the CPU stands in for the device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builds import REPOSITORY

BENCHMARKS = REPOSITORY / "scripts" / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import gpu_check  # noqa: E402
from on_gpu import contents  # noqa: E402
from on_gpu.settings import Row, Settings  # noqa: E402

from precompile import Loader  # noqa: E402

TOY = {"samples": 24, "side": 16, "spectrograms": 9, "batch_size": 8, "epochs": 4, "rounds": 2, "min_seconds": 0.0,
       "steps": 3, "train_batch_size": 4}  # fmt: skip


class StandIn:
    """What the checks ask of a Gpu, on the CPU."""

    device = torch.device("cpu")
    name = "no GPU"

    def __init__(self, device: Any = None) -> None:
        self.num_busy = 0

    def busy(self, milliseconds: float) -> None:
        self.num_busy += 1

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        yield

    def finish(self) -> None:
        pass

    def now(self) -> float:
        return time.perf_counter()

    def milliseconds(self, begin: float, end: float) -> float:
        return 1e3 * (end - begin)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
                               torch.nn.Linear(4, 1000))  # fmt: skip


def toy(**options: Any) -> Settings:
    return Settings(**{**TOY, "model": model, **options})


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return gpu_check.build(toy(), tmp_path_factory.mktemp("gpu-check"))


def test_right_contents_pass(built: tuple[Any, Any]) -> None:
    stand_in = StandIn()
    rows = list(contents.check_contents(stand_in, *built, toy()))
    assert [row.what for row in rows] == [
        f"{source}, {fields}: content"
        for fields in ("images, labels", "padded spectrograms")
        for source in ("Loader", "to_tensors")
    ]
    assert [row.passed for row in rows] == [True] * 4
    assert rows[0].found == "0 of 96 samples wrong"
    assert stand_in.num_busy > 5


@pytest.mark.parametrize(
    ("which", "spoil"),
    [
        ("image", lambda images, labels: (images[-1, 2, 5].fill_(0), labels)),
        ("label", lambda images, labels: (images, labels[0].add_(1))),
        ("order", lambda images, labels: (images.copy_(images.flip(0).clone()), labels)),
    ],
)
def test_wrong_contents_fail(built: tuple[Any, Any], which: str, spoil: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Spoiling(Loader):
        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                if isinstance(batch, tuple) and len(batch) == 2 and batch[0].ndim == 4:
                    spoil(*batch)
                yield batch

    monkeypatch.setattr(contents, "Loader", Spoiling)
    row = next(contents.check_contents(StandIn(), *built, toy()))
    assert row.passed is False
    assert row.figures[0] >= 4
    assert row.verdict == "FAILED"


def test_rates_and_training_give_figures(built: tuple[Any, Any]) -> None:
    images, _ = built
    rates = list(gpu_check.check_rates(StandIn(), images, toy()))
    assert [row.what for row in rates][:3] == [
        "rate: copies of pinned memory", "rate: Loader, host memory", "rate: Loader, device, threads=1",
    ]  # fmt: skip
    assert rates[-1].what == "rate: Loader, to_tensors"
    assert all(len(row.figures) == 2 and min(row.figures) > 0 for row in rates)
    step, alone, share = gpu_check.check_training(StandIn(), images, toy())
    assert min(step.figures[0], alone.figures[0]) > 0
    assert 0 < share.figures[0] < 1
    assert [row.passed for row in (*rates, step, alone, share)] == [None] * (len(rates) + 3)


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", *map(str, arguments)])
    monkeypatch.setattr(gpu_check, "Gpu", StandIn)
    monkeypatch.setattr(gpu_check, "usable_device", torch.device)
    monkeypatch.setattr(gpu_check, "settings_of", lambda options: toy())
    with pytest.raises(SystemExit) as ended:
        gpu_check.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(("is_right", "code"), [(True, 0), (False, 1)])
def test_the_exit_status_and_the_figures_tell_whether_all_passed(
    is_right: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Row("good", "0 wrong", (0,), True), Row("asked", "3 wrong", (3,), is_right), Row("speed", "9", (9.0,))]
    monkeypatch.setattr(gpu_check, "check_contents", lambda *arguments: iter(rows))
    figures = tmp_path / "figures.json"
    assert run_main(monkeypatch, "--only", "contents", "--json", figures, "--dir", tmp_path) == code
    found = json.loads(figures.read_text())
    assert found["passed"] is is_right
    assert found["machine"].startswith("no GPU; ")
    assert found["settings"]["samples"] == 24
    assert [row["what"] for row in found["rows"]] == ["built", "good", "asked", "speed"]
    out = capsys.readouterr().out
    assert out.splitlines()[0] == found["machine"]
    assert ("FAILED" in out) is not is_right
    assert list(tmp_path.iterdir()) == [figures]


def gpu_check_without_a_gpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "gpu_check.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    )


def test_without_a_gpu_one_line_says_so() -> None:
    done = gpu_check_without_a_gpu()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: device='cuda' cannot be used here: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", "100"], "error: samples must fill a batch of 256, got samples=100"),
        (["--rounds", "0"], "error: rounds must be at least 1, got rounds=0"),
        (["--only", "speed"], "invalid choice: 'speed'"),
        (["--steps", "x"], "invalid int value: 'x'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str) -> None:
    done = gpu_check_without_a_gpu(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_checksums_tell_samples_apart() -> None:
    rng = np.random.default_rng(0)
    images = [(torch.from_numpy(rng.integers(0, 256, (3, 4, 4), dtype=np.uint8)), number) for number in range(50)]
    images[1] = images[0][0].flip(0), 1
    images[2] = images[0][0] ^ 1, 2
    assert len(set(contents.Checksums(images, torch.device("cpu")).expected.tolist())) == 50
