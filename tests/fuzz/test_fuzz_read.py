"""Damaged datasets: an error that names a file, or the right data, or wrong data that a full verify reports.

Never a crash, a hang, a huge allocation, or an error of some library. PRECOMPILE_FUZZ_CASES chooses the cases, which
are functions of their numbers: `1234` is one, `0:100000` is the long run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz_datasets import KINDS, kind_of, write_all

TESTS = Path(__file__).resolve().parents[1]
CASES = os.environ.get("PRECOMPILE_FUZZ_CASES")
_PARTS = 3
_STDERR_LINES = 30

pytestmark = pytest.mark.timeout(24 * 3600 if CASES else 900)


def numbers_of(part: int) -> range:
    start, _, stop = (CASES or "0:2100").partition(":")
    return range(int(start) + part, int(stop or int(start) + 1), _PARTS)


def run(pristine: Path, home: Path, numbers: range) -> list[dict[str, Any]]:
    """The verdicts of the cases. A reader that dies fails the case it was at; another one goes on behind it."""
    verdicts: list[dict[str, Any]] = []
    while numbers:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        arguments = map(str, (pristine, home, numbers.start, numbers.stop, numbers.step))
        done = subprocess.run(
            [sys.executable, str(TESTS / "fuzz" / "fuzz_worker.py"), *arguments], capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"}, check=False,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        verdicts += [json.loads(line) for line in lines if line.startswith("{")]
        if done.returncode == 0:
            break
        begun = [int(line.split()[1]) for line in lines if line.startswith("begin ")]
        assert begun, done.stderr  # it did not even start
        verdicts.append(died(begun[-1], done))
        numbers = range(begun[-1] + numbers.step, numbers.stop, numbers.step)
    return verdicts


def died(number: int, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    end = "\n".join(done.stderr.splitlines()[-_STDERR_LINES:])
    problem = f"the reader ended with {done.returncode}:\n{end}"
    return {"number": number, "kind": kind_of(number), "case": f"case {number}", "outcome": "died", "problem": problem}


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty folder, on a RAM disk if there is one."""
    disk = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(dir=disk, prefix="precompile-fuzz-"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("part", range(_PARTS))
def test_no_damage_is_a_problem(home: Path, part: int) -> None:
    numbers = numbers_of(part)
    if not numbers:
        pytest.skip(f"no case of part {part} was chosen")
    write_all(home / "pristine")
    verdicts = run(home / "pristine", home / "copy", numbers)
    assert [verdict["number"] for verdict in verdicts] == list(numbers)
    failed = [verdict for verdict in verdicts if verdict["problem"]]
    shown = "\n".join(f"{verdict['case']}\n{verdict['problem']}" for verdict in failed[:5])
    assert not failed, f"{len(failed)} cases; run one alone with PRECOMPILE_FUZZ_CASES=<number>\n{shown}"
    if CASES is None:
        assert_every_outcome(verdicts)


def assert_every_outcome(verdicts: list[dict[str, Any]]) -> None:
    """Otherwise the damages would be too few, or all of one kind, and show nothing."""
    counts = Counter((verdict["kind"], verdict["outcome"]) for verdict in verdicts)
    kinds = {kind for kind, _ in counts}
    assert len(kinds) == len(KINDS) / _PARTS
    assert all(counts[kind, outcome] >= 10 for kind in kinds for outcome in ("right", "refused", "reported")), counts
