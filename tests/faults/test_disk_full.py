"""The disk is full, or fails: one line says so, the old generation stays, and the same command goes on later."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builds import assert_matches
from disturbances import Kills
from fault import Fault
from scenarios import Scenarios
from servers import BuildServer, until

MakeDisk = Callable[[str], Path]
FULL = "No space left on device|requested and .* written"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[MakeDisk]:
    """disk("48m"): a file system of that size."""
    mounted = []

    def mount(size: str) -> Path:
        point = tmp_path / f"disk{len(mounted)}"
        point.mkdir()
        try:
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(point)]
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("there is no command `mount`")
        if done.returncode:
            pytest.skip(f"may not mount a tmpfs: {done.stderr.splitlines()[0]}")
        mounted.append(point)
        return point

    yield mount
    for point in mounted:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def write_for_ever(descriptor: int, data: bytes) -> None:
    while True:
        os.write(descriptor, data)


def fill(folder: Path) -> Path:
    """Leave no byte free; returns the file that takes them all."""
    filler = folder / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for num_bytes in (1 << 20, 1 << 12, 1):
            with pytest.raises(OSError, match="No space left"):
                write_for_ever(descriptor, bytes(num_bytes))
    finally:
        os.close(descriptor)
    return filler


class FullDisk(Kills):
    """The disk becomes full right before a call; later there is space again."""

    def disturb(self, fault: Fault) -> None:
        build = self.start(replace(fault, do="pause").environment)
        until(lambda: fault.fired.exists() or not build.is_running(), "the call does not come")
        filler = fill(self.out.parent)
        fault.gate.touch()
        found = build.finish()
        if found.code != 0:
            for refused in (found, self.server.run(*self.scenario.command(self.out))):
                assert refused.code == 1, refused.err
                full = (
                    rf"cannot write {self.out}.*({FULL}).*; free some space, then run|has 0 MB free.* Free some space"
                )
                assert_matches(full, refused.error)
        self.server.wait_for_silence()
        self.scenario.check_left(self.out)
        filler.unlink()


class FailingDisk(Kills):
    """From a call on, everything that is written fails."""

    def disturb(self, fault: Fault) -> None:
        found = self.start(fault.environment).finish()
        assert isinstance(fault.do, int)
        advice = "mend the storage" if fault.do == errno.EIO else "free some space"
        assert_matches(rf"cannot write {self.out}.*{os.strerror(fault.do)}; {advice}", found.error)
        self.check_exit(found, 1)


class SmallFiles(Kills):
    """No file may become larger than a few thousand bytes."""

    max_bytes = 0

    def disturb(self, fault: Fault) -> None:
        build = self.start(replace(fault, do="pause").environment)
        until(lambda: fault.fired.exists() or not build.is_running(), "the call does not come")
        resource.prlimit(build.pid, resource.RLIMIT_FSIZE, (self.max_bytes, resource.RLIM_INFINITY))
        fault.gate.touch()
        found = build.finish()
        assert_matches(rf"cannot write {self.out}.*; (free some space|mend the storage)", found.error)
        self.check_exit(found, 1)


@pytest.mark.parametrize(("name", "store"), [("incremental", "lmdb"), ("first", "flat")])
def test_a_disk_that_fills_up_under_a_worker(
    server: BuildServer, scenarios: Scenarios, tmp_path: Path, disk: MakeDisk, name: str, store: str
) -> None:
    full = FullDisk(server, scenarios.get(name, store), tmp_path, out=disk("48m") / "out", role="worker")
    full.check([full.first("open build/shards/", skip=1)])


def test_a_disk_that_fills_up_in_the_commit(
    server: BuildServer, scenarios: Scenarios, tmp_path: Path, disk: MakeDisk
) -> None:
    full = FullDisk(server, scenarios.get("smaller", "flat"), tmp_path, out=disk("48m") / "out")
    full.check(full.of_the_commit()[:9])


@pytest.mark.parametrize(("name", "store", "max_bytes"), [("incremental", "lmdb", 20_000), ("first", "flat", 3000)])
def test_files_that_may_not_grow(
    server: BuildServer, scenarios: Scenarios, tmp_path: Path, name: str, store: str, max_bytes: int
) -> None:
    small = SmallFiles(server, scenarios.get(name, store), tmp_path)
    small.max_bytes = max_bytes
    small.check([0])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("open build/shards/", errno.EIO),
        ("replace build/shards/", errno.EDQUOT),
        ("open build/receipts/", errno.ENOSPC),
    ],
)
def test_a_disk_that_fails_under_a_worker(
    server: BuildServer, scenarios: Scenarios, tmp_path: Path, call: str, error: int
) -> None:
    failing = FailingDisk(server, scenarios.get("first", "flat"), tmp_path, role="worker", do=error)
    failing.check([failing.first(call, skip=1)])


def test_a_disk_that_is_too_small_is_refused(server: BuildServer, scenarios: Scenarios, disk: MakeDisk) -> None:
    out = disk("8m") / "out"
    found = server.run(*scenarios.get("first", "flat").command(out))
    assert found.code == 1
    assert_matches(r"needs about \d+ MB, the .* has \d+ MB free; nothing was written", found.error)
    assert not (out / "manifest.json").exists()
    assert list((out / "shards").iterdir()) == []


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", ["first", "incremental"])
@pytest.mark.parametrize("role", ["build", "worker"])
def test_a_disk_that_fills_up_at_every_call(
    server: BuildServer, scenarios: Scenarios, tmp_path: Path, disk: MakeDisk, name: str, role: str
) -> None:
    store = "lmdb" if role == "build" else "flat"
    full = FullDisk(server, scenarios.get(name, store), tmp_path, out=disk("48m") / "out", role=role)
    full.check(full.all())


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("error", [errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("store", ["lmdb", "flat"])
def test_a_disk_that_fails_at_every_call_of_a_worker(
    server: BuildServer, scenarios: Scenarios, tmp_path: Path, store: str, error: int
) -> None:
    failing = FailingDisk(server, scenarios.get("recipe", store), tmp_path, role="worker", do=error)
    failing.check(failing.all())
