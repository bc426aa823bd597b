"""However an executor is left, no worker stays, and heartbeats stay only if it was killed outright."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import xxhash
from builds import content, events, start_cli
from poison import GATE, MISBEHAVING_DECODER, is_running, running_children, until
from watched import Watch

import precompile
from precompile.errors import StoppedError, StorageError
from precompile.pipeline.executors import process
from precompile.pipeline.executors.heartbeat import read_left
from precompile.pipeline.executors.pool import WorkerPool
from precompile.pipeline.executors.process import WorkerProcess
from precompile.pipeline.layout import BuildDirs

STOPPED = "^stopped by max_runtime; finished shards are kept, run the same command again to go on$"


def build(raw: Path, out: Path, **options: Any) -> precompile.Summary:
    return precompile.build(raw, out, workers=2, shard_size=4000, quiet=True, **options)


def heartbeats(out: Path) -> list[Path]:
    return list(BuildDirs(out).workers.glob("*.heartbeat"))


def test_a_build_that_succeeds_removes_its_heartbeats(raw: Path, tmp_path: Path, watch: Callable[..., Watch]) -> None:
    seen = watch()
    build(raw, tmp_path / "out")
    assert seen.heartbeats == [(2, 0)]


def test_a_build_that_fails_removes_its_heartbeats(
    raw: Path, tmp_path: Path, watch: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch()
    monkeypatch.setattr(WorkerProcess, "receive", raising(StorageError("the disk is gone")))
    with pytest.raises(StorageError, match="the disk is gone"):
        build(raw, tmp_path / "out")
    assert seen.heartbeats == [(2, 0)]
    assert not running_children()


def test_the_heartbeat_of_a_worker_that_died_goes_with_it(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], watch: Callable[..., Watch]
) -> None:
    (raw / "class1" / "bad.jpg").write_bytes(b"SEGV")
    in_workers(MISBEHAVING_DECODER)
    seen = watch()
    assert build(raw, tmp_path / "out").quarantined == 1
    [(before, after)] = seen.heartbeats
    assert before <= 2
    assert after == 0


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (process, "_spawn"),
        (WorkerPool, "start"),
        (WorkerProcess, "send"),
        (WorkerProcess, "begin"),
        (WorkerProcess, "pulse"),
        (WorkerProcess, "receive"),
        (WorkerProcess, "dismiss"),
        (WorkerProcess, "wait"),
        (WorkerProcess, "stop"),
    ],
)
def test_an_interrupt_at_any_moment_leaves_no_worker(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    monkeypatch.setattr(owner, name, interrupted(getattr(owner, name)))
    with pytest.raises(KeyboardInterrupt) as stopped:
        build(raw, tmp_path / "out")
    until(lambda: not running_children())
    assert heartbeats(tmp_path / "out") == []
    assert stopped.traceback, "held until here, as a notebook does, so that no file is closed by chance"


def interrupted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Ctrl-C arrives right after the second call of `function`."""
    calls = []

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(function)
        result = function(*arguments, **options)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return result

    return call


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


def test_a_deadline_ends_a_sample_that_hangs(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], watch: Callable[..., Watch]
) -> None:
    for number in range(2):  # one for each worker
        (raw / "class1" / f"bad{number}.jpg").write_bytes(b"HANG")
    in_workers(MISBEHAVING_DECODER)
    watch(deadline=time.monotonic() + 2)
    with pytest.raises(StoppedError, match=STOPPED):
        build(raw, tmp_path / "out", timeout_seconds=1000)
    assert not running_children()
    assert heartbeats(tmp_path / "out") == []
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_deadline_ends_a_probe_too(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], watch: Callable[..., Watch]
) -> None:
    for path in raw.rglob("*.jpg"):
        path.write_bytes(b"HANG")
    in_workers(MISBEHAVING_DECODER)
    watch(probes=True, deadline=time.monotonic() + 2)
    with pytest.raises(StoppedError, match=STOPPED):
        build(raw, tmp_path / "out", timeout_seconds=1000)
    assert not running_children()
    assert heartbeats(tmp_path / "out") == []


def test_a_build_goes_on_after_its_deadline(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], watch: Callable[..., Watch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    in_workers(GATE)
    receipts = BuildDirs(tmp_path / "out").receipts
    monkeypatch.setenv("RECEIPTS", str(receipts / "*.npz"))
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    watch(deadline=time.monotonic() + 4)
    with pytest.raises(StoppedError, match=STOPPED):
        build(raw, tmp_path / "out")
    kept = len(list(receipts.glob("*.npz")))
    (tmp_path / "gate").touch()
    watch()
    build(raw, tmp_path / "out", log_file=tmp_path / "log")
    assert [event["resumed"] for event in events(tmp_path / "log") if event["event"] == "started"] == [kept]
    build(raw, tmp_path / "plain")
    assert content(tmp_path / "out") == content(tmp_path / "plain")


def test_what_a_killed_build_was_on_is_known_and_its_workers_end(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path]
) -> None:
    for path in raw.rglob("*.jpg"):
        path.write_bytes(path.name.encode() + b"HANG")
    site = in_workers(MISBEHAVING_DECODER)
    out = tmp_path / "out"
    path = {"PYTHONPATH": f"{site}:{Path(precompile.__file__).parents[1]}"}
    build = start_cli("build", raw, out, "--workers", 2, "--timeout", 1000, environment=path)
    workers: list[psutil.Process] = []
    try:
        until(lambda: any(pulse.xxh3 for pulse in read_left(BuildDirs(out).workers)))
        workers += running_children(build.pid)
        assert len(workers) == 2
        build.kill()
        build.communicate()
        until(lambda: not any(map(is_running, workers)))
    finally:
        for started in (build, *filter(is_running, workers)):
            started.kill()
    left = read_left(BuildDirs(out).workers)
    assert len(left) == 1, "the first worker was on the first probe"
    assert left[0].xxh3 in {xxhash.xxh3_64_hexdigest(path.read_bytes()) for path in raw.rglob("*.jpg")}


def test_a_worker_whose_parent_ended_before_it_could_ask_for_a_signal_ends() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ours, theirs = socket.socketpair()  # kept open, so that it is not this that ends the worker
    with ours, theirs:
        code = f"from precompile.pipeline.executors.worker import main; main({theirs.fileno()}, {gone.pid})"
        worker = subprocess.Popen([sys.executable, "-c", code], pass_fds=(theirs.fileno(),))
        assert psutil.Process(worker.pid).ppid() != gone.pid
        assert worker.wait(30) == 0
