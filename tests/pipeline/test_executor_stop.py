"""A build that is stopped or killed takes its workers with it, and goes on later."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from builds import cli, content, events, finish, start_cli
from poison import GATE, until

import precompile
from precompile.pipeline.layout import BuildDirs


@pytest.fixture
def gated(raw: Path, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """gated() starts a build of `raw` into `out` and returns when it stands still with two of its shards finished."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(GATE)
    receipts = BuildDirs(tmp_path / "out").receipts
    environment = {"RECEIPTS": str(receipts / "*.npz"), "GATE": str(tmp_path / "gate")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "site"), str(Path(precompile.__file__).parents[1])])
    started = []

    def start() -> subprocess.Popen[str]:
        process = start_cli("build", *arguments(raw, tmp_path), environment=environment)
        started.append(process)
        until(lambda: len(list(receipts.glob("*.npz"))) >= 2 or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def arguments(raw: Path, home: Path) -> list[object]:
    return [raw, home / "out", "--workers", 2, "--shard-size", 4000, "--log-file", home / "log", "--quiet", "--json"]


def check_resumed(raw: Path, home: Path) -> None:
    """The next run compiles only what is missing, and gives the bytes of a build that nobody disturbed."""
    log = home / "log"
    log.unlink()
    done = cli("build", *arguments(raw, home))
    assert done.code == 0, done.err
    started = next(event for event in events(log) if event["event"] == "started")
    finished = [event["task"] for event in events(log) if event["event"] == "shard finished"]
    assert started["resumed"] >= 2
    assert len(finished) == len(set(finished)) == started["tasks"] - started["resumed"]
    assert done.json["planned"] == done.json["compiled"] == 24
    (home / "plain").mkdir()
    plain = cli("build", *arguments(raw, home)[:1], home / "plain" / "out", *arguments(raw, home)[2:])
    assert content(home / "out") == content(home / "plain" / "out")
    assert plain.json["fingerprint"] == done.json["fingerprint"]
    assert [path.name for path in (home / "out" / "build").iterdir()] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_build_keeps_its_work(
    raw: Path, tmp_path: Path, gated: Callable[[], subprocess.Popen[str]], number: int
) -> None:
    process = gated()
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == 2
    process.send_signal(number)
    stopped = finish(process)
    assert stopped.code == 75
    assert stopped.error == "error: stopped; finished shards are kept, run the same command again to go on"
    assert not (tmp_path / "out" / "manifest.json").exists()
    until(lambda: not any(worker.is_running() for worker in workers))
    check_resumed(raw, tmp_path)


def test_a_killed_build_takes_its_workers_with_it_and_goes_on_later(
    raw: Path, tmp_path: Path, gated: Callable[[], subprocess.Popen[str]]
) -> None:
    process = gated()
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == 2
    process.kill()
    assert finish(process).code == -signal.SIGKILL
    gone, alive = psutil.wait_procs(workers, timeout=30)
    assert (len(gone), alive) == (2, [])
    assert not (tmp_path / "out" / "manifest.json").exists()
    check_resumed(raw, tmp_path)


def test_a_killed_build_leaves_the_old_generation(
    raw: Path, tmp_path: Path, gated: Callable[[], subprocess.Popen[str]], make_photos: Callable[..., Path]
) -> None:
    out = tmp_path / "out"
    old = precompile.build(raw, out, workers=1, quiet=True, size=8, crop=8)
    process = gated()
    dataset = precompile.CompiledDataset(out, fields="image")
    process.kill()
    finish(process)
    assert dataset[23].shape == (3, 8, 8)
    assert precompile.CompiledDataset(out).fingerprint == old.fingerprint
    assert cli("verify", out, "--full").code == 0
    assert cli("build", *arguments(raw, tmp_path)).json["generation"] == 2


def test_the_second_of_two_builds_ends_at_once_and_names_the_first(
    raw: Path, tmp_path: Path, gated: Callable[[], subprocess.Popen[str]]
) -> None:
    process = gated()
    second = cli("build", raw, tmp_path / "out", "--size", 8)
    assert second.code == 75
    assert f"another build (pid {process.pid} on " in second.error
    (tmp_path / "gate").touch()
    first = finish(process)
    assert (first.code, first.json["compiled"]) == (0, 24)
    assert cli("verify", tmp_path / "out", "--full", "--against-source", "all").code == 0


def test_a_changed_source_is_resumed_with_what_still_fits(
    raw: Path, tmp_path: Path, gated: Callable[[], subprocess.Popen[str]]
) -> None:
    process = gated()
    process.kill()
    finish(process)
    (raw / "class0" / "0000.jpg").unlink()
    (tmp_path / "log").unlink()
    done = cli("build", *arguments(raw, tmp_path))
    assert done.json["planned"] == done.json["compiled"] == 23
    assert next(event for event in events(tmp_path / "log") if event["event"] == "started")["resumed"] >= 2
