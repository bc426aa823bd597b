"""One writer for one output: who holds it is named, and who died is no hindrance."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest
from builds import REPOSITORY, assert_matches, build, save_image, unchanged
from inline_executor import inline  # noqa: F401  (a fixture)

from precompile import machine
from precompile.errors import BusyError, StorageError
from precompile.pipeline import lock as module
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.lock import locked, refuse_if_busy
from precompile.pipeline.output import prepare

HOLD = """
import sys
from pathlib import Path
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.lock import locked
with locked(BuildDirs(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def dirs(tmp_path: Path) -> BuildDirs:
    return prepare(tmp_path / "out", "flat")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    save_image(tmp_path / "raw" / "c" / "a.png")
    return tmp_path / "raw"


@pytest.fixture
def holder(dirs: BuildDirs) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the output until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(dirs.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.usefixtures("inline")
def test_a_second_build_ends_at_once_and_names_the_first(
    raw: Path, dirs: BuildDirs, holder: subprocess.Popen[str]
) -> None:
    refused = build(raw, dirs.root)
    assert refused.code == 75
    since = r"since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
    owner = rf"out: another build \(pid {holder.pid} on {re.escape(socket.gethostname())}, {since}\) is writing here"
    assert_matches(owner, refused.error)
    holder.communicate()
    assert build(raw, dirs.root).code == 0


@pytest.mark.usefixtures("inline")
def test_what_a_dead_owner_left_is_no_hindrance(raw: Path, dirs: BuildDirs, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.communicate()
    assert dirs.lock.exists()
    assert json.loads(dirs.owner.read_text())["pid"] == holder.pid
    assert build(raw, dirs.root).code == 0


def test_who_only_asks_takes_nothing(dirs: BuildDirs, tmp_path: Path) -> None:
    with unchanged(tmp_path):
        refuse_if_busy(dirs)
        refuse_if_busy(BuildDirs(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    with locked(dirs), pytest.raises(BusyError, match=rf"another build \(pid {os.getpid()} on .*\) is writing here"):
        refuse_if_busy(dirs)
    refuse_if_busy(dirs)


@pytest.mark.parametrize("owner", [None, "", "[]", "{}", '{"pid": 1}', "{" * 100_000])
def test_a_holder_that_left_no_name(dirs: BuildDirs, owner: str | None) -> None:
    dirs.work.mkdir()
    if owner is not None:
        dirs.owner.write_text(owner)
    with filelock.FileLock(dirs.lock), pytest.raises(BusyError, match="out: another build is writing here"):
        locked(dirs).__enter__()


def test_the_lock_is_free_after_an_error(dirs: BuildDirs) -> None:
    with pytest.raises(ZeroDivisionError), locked(dirs):
        raise ZeroDivisionError
    assert not dirs.owner.exists()
    with locked(dirs):
        assert json.loads(dirs.owner.read_text())["pid"] == os.getpid()
    assert dirs.lock.exists()


def test_half_written_files_of_a_dead_owner_are_swept(dirs: BuildDirs) -> None:
    dirs.work.mkdir()
    left = [dirs.root / ".manifest.json.7.tmp", dirs.work / ".owner.json.7.tmp"]
    for path in left:
        path.write_text("half")
    with locked(dirs):
        assert not any(path.exists() for path in left)


def test_a_file_system_without_locks_is_named(dirs: BuildDirs, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: filelock.FileLock) -> None:
        raise NotImplementedError

    monkeypatch.setattr(filelock.FileLock, "acquire", fail)
    with pytest.raises(StorageError, match=r"cannot lock .*/\.precompile\.lock: its file system has no locks"):
        locked(dirs).__enter__()


def test_what_cannot_be_locked_is_named(dirs: BuildDirs) -> None:
    dirs.lock.unlink()
    dirs.lock.mkdir()
    with pytest.raises(StorageError, match=r"cannot lock .*/out/\.precompile\.lock: Is a directory"):
        locked(dirs).__enter__()


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "is_network", lambda path: True)


def leave_owner(dirs: BuildDirs, host: str, age_seconds: float) -> None:
    dirs.work.mkdir(exist_ok=True)
    dirs.owner.write_text(json.dumps({"pid": 7, "host": host, "since": "2026-01-02T03:04:05+00:00"}))
    written = dirs.owner.stat().st_mtime
    os.utime(dirs.owner, (written - age_seconds, written - age_seconds))


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("age_seconds", [0, 50])
def test_an_owner_on_another_host_that_was_there_lately_is_respected(dirs: BuildDirs, age_seconds: float) -> None:
    leave_owner(dirs, "elsewhere", age_seconds)
    half = dirs.root / ".manifest.json.7.tmp"
    half.write_text("half")
    message = r"another build \(pid 7 on elsewhere, since 2026-01-02T03:04:05\+00:00\) was writing here \d+ s ago; run"
    with pytest.raises(BusyError, match=message):
        locked(dirs).__enter__()
    assert json.loads(dirs.owner.read_text())["host"] == "elsewhere"
    assert half.exists()  # it may be in work there
    with filelock.FileLock(dirs.lock, timeout=0):
        pass


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(("host", "age_seconds"), [("elsewhere", 61), (socket.gethostname(), 0)])
def test_an_owner_that_is_dead_is_not_respected(dirs: BuildDirs, host: str, age_seconds: float) -> None:
    """On this host the kernel's lock has the last word."""
    leave_owner(dirs, host, age_seconds)
    with locked(dirs):
        assert json.loads(dirs.owner.read_text())["pid"] == os.getpid()
    assert not dirs.owner.exists()


@pytest.mark.usefixtures("network")
def test_a_mark_that_cannot_be_read_may_be_another_hosts(dirs: BuildDirs) -> None:
    dirs.work.mkdir()
    dirs.owner.write_text("")
    with pytest.raises(BusyError, match="out: another build was writing here 0 s ago"):
        locked(dirs).__enter__()


def test_an_owner_on_another_host_does_not_matter_on_a_local_disk(dirs: BuildDirs) -> None:
    leave_owner(dirs, "elsewhere", 0)
    with locked(dirs):
        pass


@pytest.mark.usefixtures("network")
def test_of_two_hosts_that_come_at_once_one_gets_it(dirs: BuildDirs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file server keeps no locks between them, and both see no owner."""

    def lose_the_race(dirs: BuildDirs) -> None:
        unlink(dirs.owner, missing_ok=True)
        leave_owner(dirs, "elsewhere", 0)

    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: lose_the_race(dirs) if path == dirs.owner else
                        unlink(path, missing_ok=missing_ok))  # fmt: skip
    with pytest.raises(BusyError, match=r"another build \(pid 7 on elsewhere, since .*\) has just begun to write here"):
        locked(dirs).__enter__()
    assert json.loads(dirs.owner.read_text())["host"] == "elsewhere"


@pytest.mark.usefixtures("network")
def test_the_mark_is_refreshed_while_the_lock_is_held(dirs: BuildDirs, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed, utime = threading.Event(), os.utime

    def note(path: Path) -> None:
        utime(path)
        refreshed.set()

    monkeypatch.setattr(module, "_REFRESH_SECONDS", 0.001)
    monkeypatch.setattr(module.os, "utime", note)
    with locked(dirs):
        assert refreshed.wait(60)
    assert not any(thread.name == "precompile-owner" for thread in threading.enumerate())


@pytest.mark.usefixtures("network")
def test_the_mark_of_who_took_over_is_left_alone(dirs: BuildDirs) -> None:
    with locked(dirs):
        leave_owner(dirs, "elsewhere", 0)
    assert json.loads(dirs.owner.read_text())["host"] == "elsewhere"
