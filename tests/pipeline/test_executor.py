"""Decoders that crash, hang or raise odd errors cost their file, never the build; a stopped build goes on later."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from builds import cli, content, events, finish, quarantine, start_cli

import precompile
from precompile.errors import BuildFailedError, StorageError
from precompile.pipeline.layout import BuildDirs

MISBEHAVING_DECODER = """
import os, signal, PIL.Image

def hang():
    while True:
        pass

def deep():
    deep()

def throw(error):
    raise error

class Odd(BaseException):
    pass

ACTIONS = {
    b"SEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    b"ABRT": os.abort,
    b"EXIT": lambda: os._exit(3),
    b"HANG": hang,
    b"DEEP": deep,
    b"MEMO": lambda: throw(MemoryError()),
    b"CTRL": lambda: throw(KeyboardInterrupt()),
    b"QUIT": lambda: throw(SystemExit(0)),
    b"ODD ": lambda: throw(Odd("odd")),
    b"LINE": lambda: throw(ValueError("one\\n  two")),
}
real = PIL.Image.open

def misbehave(file, *arguments, **options):
    ACTIONS.get(file.getvalue()[:4], lambda: None)()
    return real(file, *arguments, **options)

PIL.Image.open = misbehave
"""

GATE = """
import glob, os, time, PIL.Image
real = PIL.Image.open

def wait_for_the_gate(*arguments, **options):
    while len(glob.glob(os.environ["RECEIPTS"])) >= 2 and not os.path.exists(os.environ["GATE"]):
        time.sleep(0.01)
    return real(*arguments, **options)

PIL.Image.open = wait_for_the_gate
"""
"""Decoding stands still when two shards are finished, until the file GATE exists."""

FAILING_READS = """
import errno, os, pathlib
real = pathlib.Path.read_bytes

def read_bytes(path):
    if path.suffix == ".png":
        marker = pathlib.Path(os.environ["COUNTER"])
        if path.name == "bad.png" and len(marker.read_text()) < int(os.environ["FAILURES"]):
            marker.write_text(marker.read_text() + "x")
            number = int(os.environ["ERRNO"])
            raise OSError(number, os.strerror(number), str(path))
    return real(path)

pathlib.Path.read_bytes = read_bytes
"""


@pytest.fixture
def in_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """in_workers(code): every Python process that starts later runs `code` first; returns the folder it is in."""

    def install(code: str) -> Path:
        directory = tmp_path / "site"
        directory.mkdir()
        (directory / "sitecustomize.py").write_text(code)
        monkeypatch.syspath_prepend(directory)
        return directory

    return install


@pytest.fixture
def raw(tmp_path: Path, make_photos: Callable[..., Path]) -> Path:
    return make_photos(tmp_path / "raw", count=24, splits=(), size=(20, 20))


@pytest.mark.parametrize(
    ("marker", "error", "message"),
    [
        (b"SEGV", "WorkerDied", "the decoder ended its process (SIGSEGV)"),
        (b"ABRT", "WorkerDied", "the decoder ended its process (SIGABRT)"),
        (b"EXIT", "WorkerDied", "the decoder ended its process (exit status 3)"),
        (b"CTRL", "WorkerDied", "the decoder ended its process"),
        (b"QUIT", "WorkerDied", "the decoder ended its process (exit status 0)"),
        (b"ODD ", "WorkerDied", "the decoder ended its process (exit status 1)"),
        (b"HANG", "TimeoutError", "not finished after 1 s (--timeout)"),
        (b"DEEP", "ContentError", "maximum recursion depth exceeded"),
        (b"MEMO", "MemoryError", "MemoryError"),
        (b"LINE", "ContentError", "one two"),
    ],
)
def test_one_bad_decoder_costs_one_file(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], marker: bytes, error: str, message: str
) -> None:
    bad = raw / "class1" / "bad.jpg"
    bad.write_bytes(marker)
    in_workers(MISBEHAVING_DECODER)
    summary = precompile.build(
        raw, tmp_path / "out", workers=2, shard_size=4000, timeout_seconds=1, quiet=True, order="source"
    )
    assert (summary.planned, summary.compiled, summary.quarantined, summary.exit_code) == (25, 24, 1, 3)
    row = quarantine(tmp_path / "out")["class1/bad.jpg"]
    assert (row["stage"], row["error"], row["size"], row["path"]) == ("decode", error, 4, str(bad))
    assert row["message"].startswith(message)
    assert "\n" not in row["message"]
    assert [str(failure) for failure in summary.failures] == [f"class1/bad.jpg: decode: {row['message']}"]
    assert len(precompile.CompiledDataset(tmp_path / "out")) == 24


def test_many_bad_decoders_cost_only_their_files(raw: Path, tmp_path: Path, in_workers: Callable[[str], Path]) -> None:
    for number, marker in enumerate([b"SEGV", b"ABRT", b"EXIT", b"SEGV", b"MEMO", b"QUIT", b"none"]):
        (raw / f"class{number % 3}" / f"bad{number}.jpg").write_bytes(marker)
    in_workers(MISBEHAVING_DECODER)
    summary = precompile.build(raw, tmp_path / "out", workers=2, shard_size=4000, quiet=True)
    assert (summary.planned, summary.compiled, summary.quarantined) == (31, 24, 7)
    assert {key.split("/")[1] for key in quarantine(tmp_path / "out")} == {f"bad{number}.jpg" for number in range(7)}
    assert not any("bad" in key for key in precompile.CompiledDataset(tmp_path / "out").keys)


def test_a_crash_is_tried_twice_and_then_left_alone(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path]
) -> None:
    (raw / "class1" / "bad.jpg").write_bytes(b"SEGV")
    in_workers(MISBEHAVING_DECODER)
    precompile.build(raw, tmp_path / "out", workers=1, quiet=True)
    assert quarantine(tmp_path / "out")["class1/bad.jpg"]["attempts"] == 2


def test_workers_that_cannot_start_fail_the_build(raw: Path, tmp_path: Path, in_workers: Callable[[str], Path]) -> None:
    in_workers("import os, sys; sys.stderr.write('no licence\\n'); sys.stderr.flush(); os._exit(9)")
    with pytest.raises(BuildFailedError, match=r"end without compiling anything \(exit status 9\): no licence"):
        precompile.build(raw, tmp_path / "out", workers=2, quiet=True)


@pytest.fixture
def reads(tmp_path: Path, in_workers: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """reads(number, failures): the first `failures` reads of bad.png fail with that error number."""

    def install(number: int, failures: int) -> None:
        monkeypatch.setenv("COUNTER", str(tmp_path / "counter"))
        (tmp_path / "counter").write_text("")
        monkeypatch.setenv("ERRNO", str(number))
        monkeypatch.setenv("FAILURES", str(failures))
        in_workers(FAILING_READS)

    return install


@pytest.fixture
def images(tmp_path: Path, make_photos: Callable[..., Path]) -> Path:
    root = make_photos(tmp_path / "raw", count=4, classes=1, splits=(), size=(8, 8), suffix=".png")
    (root / "class0" / "0000.png").rename(root / "class0" / "bad.png")
    return root


def test_a_passing_read_error_is_no_failure(images: Path, tmp_path: Path, reads: Callable[..., None]) -> None:
    reads(5, 2)
    summary = precompile.build(images, tmp_path / "out", workers=1, quiet=True)
    assert (summary.compiled, summary.quarantined) == (4, 0)


@pytest.mark.parametrize(("number", "reason"), [(13, "Permission denied"), (2, "is gone"), (5, "Input/output error")])
def test_storage_errors_fail_the_build_and_are_never_quarantined(
    images: Path, tmp_path: Path, reads: Callable[..., None], number: int, reason: str
) -> None:
    reads(number, 1000)
    with pytest.raises(StorageError, match=rf"cannot read .*bad\.png: .*{reason}"):
        precompile.build(images, tmp_path / "out", workers=1, quiet=True)
    assert not (tmp_path / "out" / "manifest.json").exists()


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


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Poll with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the deadline passed"
        time.sleep(0.01)


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


def test_a_changed_source_is_not_resumed_from_old_receipts(
    raw: Path, tmp_path: Path, gated: Callable[[], subprocess.Popen[str]]
) -> None:
    process = gated()
    process.kill()
    finish(process)
    (raw / "class0" / "0000.jpg").unlink()
    (tmp_path / "log").unlink()
    done = cli("build", *arguments(raw, tmp_path))
    assert done.json["planned"] == done.json["compiled"] == 23
    assert next(event for event in events(tmp_path / "log") if event["event"] == "started")["resumed"] == 0
