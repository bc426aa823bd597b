"""Leases: shared locks on a generation's manifest, and who finds them."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from precompile.format.lease import Lease, claim, is_in_use, take_lease


@pytest.fixture
def generation(tmp_path: Path) -> Path:
    """The folder of a generation."""
    folder = tmp_path / "000003"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    return folder


def can_claim(generation: Path) -> bool:
    with claim(generation) as alone:
        return alone


def test_a_generation_is_in_use_until_the_last_lease_is_gone(generation: Path) -> None:
    assert not is_in_use(generation)
    first, second = take_lease(generation), take_lease(generation)
    assert first is not None
    assert second is not None
    assert is_in_use(generation)
    del first
    assert is_in_use(generation)
    assert not can_claim(generation)
    del second
    assert not is_in_use(generation)
    assert can_claim(generation)


def test_a_lease_keeps_one_descriptor_that_cannot_write(generation: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    lease = take_lease(generation)
    assert lease is not None
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert fcntl.fcntl(lease.descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    del lease
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_claim_leaves_nothing_behind(generation: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with claim(generation) as alone, claim(generation) as second:
        assert (alone, second) == (True, False)
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(BlockingIOError, match="of the caller"), claim(generation):
        raise BlockingIOError("of the caller")
    assert take_lease(generation) is not None


def test_no_lease_beside_a_claim_that_stays(generation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with claim(generation) as alone:
        assert alone
        assert take_lease(generation) is None
    assert 0 < sum(pauses) < 1


def test_a_reader_waits_for_a_claim_that_ends(generation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as claimed:
        assert claimed.enter_context(claim(generation))
        monkeypatch.setattr(time, "sleep", lambda seconds: claimed.close())
        assert take_lease(generation) is not None


def test_no_lease_on_what_was_removed_while_waiting(generation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as claimed:
        assert claimed.enter_context(claim(generation))
        monkeypatch.setattr(time, "sleep", lambda seconds: generation.rename(generation.with_name("gone")))
        assert take_lease(generation) is None


@pytest.mark.parametrize("replaced", [True, False])
def test_a_manifest_that_goes_before_it_is_locked(
    generation: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    manifest = generation / "manifest.json"
    flock = fcntl.flock

    def lock_too_late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        manifest.unlink()
        if replaced:
            manifest.write_text("{}")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_too_late)
    lease = take_lease(generation)
    assert (lease is not None) == replaced == is_in_use(generation)


@pytest.mark.parametrize("damage", ["no manifest", "no folder", "a folder as manifest"])
def test_nothing_to_lock(generation: Path, damage: str) -> None:
    (generation / "manifest.json").unlink()
    if damage == "no folder":
        generation.rmdir()
    elif damage == "a folder as manifest":
        (generation / "manifest.json").mkdir()
    assert take_lease(generation) is None
    assert not is_in_use(generation)
    assert can_claim(generation)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL])
def test_a_file_system_without_locks(generation: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert take_lease(generation) is None
    assert not is_in_use(generation)
    assert can_claim(generation)
    assert os.listdir("/proc/self/fd") == before


def test_a_platform_without_fcntl(generation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert take_lease(generation) is None
    assert not is_in_use(generation)
    assert can_claim(generation)


def in_child(lease: Lease | None, *, drop: bool) -> tuple[int, int]:
    """Fork; the child keeps what it inherited, or drops it, and lives until the returned pipe is closed."""
    ready, started = os.pipe()
    waiting, until = os.pipe()
    child = os.fork()
    if child == 0:
        if drop and lease is not None:
            os.close(lease.descriptor)
        os.close(until)
        os.write(started, b"!")
        os.read(waiting, 1)
        os._exit(0)
    assert os.read(ready, 1) == b"!"
    for descriptor in (ready, started, waiting):
        os.close(descriptor)
    return child, until


@pytest.mark.parametrize("drop", [True, False])
def test_a_forked_child_shares_the_lease(generation: Path, drop: bool) -> None:
    lease = take_lease(generation)
    child, until = in_child(lease, drop=drop)
    assert is_in_use(generation)  # also when the child let go: the parent's lock is its own
    del lease
    assert is_in_use(generation) != drop
    os.close(until)
    os.waitpid(child, 0)
    assert not is_in_use(generation)


def test_other_programs_do_not_inherit_it(generation: Path) -> None:
    lease = take_lease(generation)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False):
        assert is_in_use(generation)
        del lease
        assert not is_in_use(generation)
