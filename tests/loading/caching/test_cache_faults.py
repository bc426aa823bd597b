"""What goes wrong in this process, or on its storage, is not the fault of an entry that others read."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stagers import until

from precompile import CompiledDataset
from precompile.errors import ForeignDirectoryError, NoRoomError
from precompile.format.files import UnreadableError
from precompile.loading.caching import copying, staging
from precompile.loading.caching import directory as directory_module
from precompile.loading.caching.directory import CacheDirectory
from precompile.loading.caching.dropping import drop, sweep
from precompile.loading.caching.listing import survey
from precompile.loading.caching.locks import HeldLock, locked, read_owner, try_lock
from precompile.loading.caching.options import Cache
from precompile.loading.caching.room import MIN_RESERVE_BYTES, room
from precompile.loading.caching.staging import add

MakeSet = Callable[[int], Path]
LeftIn = Callable[[Path], set[str]]


def fail_to_open(monkeypatch: pytest.MonkeyPatch, ending: str, number: int) -> None:
    plain = os.open

    def open_file(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith(ending):
            raise OSError(number, os.strerror(number), str(path))
        return plain(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_file)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("name", ["entry.json", "manifest.json", "record.npy", ".flat"])
def test_an_entry_that_this_process_cannot_read_stays(
    images: Any, home: Path, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = CompiledDataset(images[0], cache=home).stored.root
    before = entry.stat().st_ino
    fail_to_open(monkeypatch, f"{entry.name}/{name}" if name in ("entry.json", "manifest.json") else name, number)
    with pytest.raises(UnreadableError, match=f"{entry}/.*: cannot be read: {os.strerror(number)}; mend the storage"):
        CompiledDataset(images[0], cache=home)
    monkeypatch.undo()
    assert entry.stat().st_ino == before
    assert CompiledDataset(images[0], cache=home).stored.root == entry


def test_another_entry_that_cannot_be_read_is_in_nobodys_way(
    images: Any, home: Path, mebibytes: MakeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = CompiledDataset(images[0], cache=home).stored.root
    fail_to_open(monkeypatch, f"{other.name}/entry.json", errno.EACCES)
    assert CompiledDataset(mebibytes(2), cache=home).stored.root.parent == home
    assert [listed.state for listed in survey(CacheDirectory(home))].count("unreadable") == 1


def test_who_cannot_see_whether_an_entry_is_in_use_leaves_it(
    images: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = add(images[0], Cache(directory=home))[0]
    fail_to_open(monkeypatch, "manifest.json", errno.EMFILE)
    assert drop(CacheDirectory(home), entry.name).stays == "in use"


class Interrupts:
    """ctrl-C just after the n-th lock was taken or let go."""

    def __init__(self, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left, self._flock = call, fcntl.flock
        monkeypatch.setattr(fcntl, "flock", self)

    def __call__(self, descriptor: int, operation: int) -> None:
        self._flock(descriptor, operation)
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


def test_an_interrupt_at_any_lock_leaves_all_of_them_free(
    images: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, call = [], 0
    while True:
        call, home = call + 1, tmp_path / str(call)
        with monkeypatch.context() as patch:
            Interrupts(call, patch)
            try:
                CompiledDataset(images[0], split="val", cache=home)
                break
            except KeyboardInterrupt as interrupt:
                kept.append(interrupt)  # as sys.last_exc: its frames live on
        cached = CompiledDataset(images[0], split="val", cache=Cache(directory=home, stall_seconds=0.2))
        assert len(cached) == 10
    assert len(kept) > 5


def test_an_interrupt_before_a_lock_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(lock: HeldLock, *, remove: bool = False) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    path = tmp_path / "x.lock"
    with pytest.raises(KeyboardInterrupt) as kept, locked(path, what="a test", stall_seconds=1):
        monkeypatch.setattr(HeldLock, "release", interrupt)
    assert kept.value.__traceback__ is not None
    assert try_lock(path) is not None


@pytest.mark.parametrize("wanted", [{}, {"split": "val"}])
def test_a_child_forked_while_a_thread_stages_has_none_of_its_files(
    images: Any, tmp_path: Path, home: Path, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep their memory, the lock, and the source's generation."""
    half, go_on, plain = threading.Event(), threading.Event(), copying.Meter.add

    def add_half(meter: copying.Meter, num_bytes: int) -> None:
        plain(meter, num_bytes)
        half.set()
        assert go_on.wait(60)

    monkeypatch.setattr(copying.Meter, "add", add_half)
    root = shutil.copytree(images[0], tmp_path / "x.pc")
    thread = threading.Thread(target=lambda: add(root, Cache(directory=home), **wanted))
    thread.start()
    assert half.wait(60)
    is_forked, done = os.pipe()
    child = os.fork()
    if not child:
        os.write(done, b"1")
        signal.pause()
    try:
        assert os.read(is_forked, 1) == b"1"
        ours, theirs = (open_below(pid, root, home) for pid in (os.getpid(), child))
        assert len(ours) >= 3
        assert theirs == []
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(is_forked)
        os.close(done)
        go_on.set()
        thread.join()


def open_below(pid: int, root: Path, home: Path) -> list[str]:
    """Files that a process has open for writing in the cache, and manifests of the source."""
    found = [os.readlink(item.path) for item in os.scandir(f"/proc/{pid}/fd") if os.path.lexists(item.path)]
    return [
        path for path in found if path.startswith(f"{home}/") or (path.startswith(f"{root}/") and "manifest" in path)
    ]


def test_entries_that_go_while_they_are_listed(images: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split in ("train", "val"):
        add(images[0], Cache(directory=home), split=split)
    for ending in ("generations", "shards", "-[entry]"):
        if not CacheDirectory(home).entries():
            add(images[0], Cache(directory=home))
        with monkeypatch.context() as patch:
            remove_when_seen(home, ending, patch)
            assert len(survey(CacheDirectory(home))) <= 2
    monkeypatch.undo()
    assert all(listed.state == "current" for listed in survey(CacheDirectory(home)))


def remove_when_seen(home: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process drops an entry just before a folder of it is read."""
    entry = home / CacheDirectory(home).entries()[0]
    seen = str(entry) if ending == "-[entry]" else f"{entry}{os.sep}{ending}"
    for name, plain in (("scandir", os.scandir), ("listdir", os.listdir)):

        def look(path: Any = ".", plain: Any = plain) -> Any:
            if str(path).startswith(seen):
                monkeypatch.undo()
                shutil.rmtree(entry)
            return plain(path)

        monkeypatch.setattr(os, name, look)


@pytest.fixture
def undeletable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Any, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(directory_module.shutil, "rmtree", fail)


def test_what_cannot_be_deleted_is_in_nobodys_way(
    images: Any, home: Path, undeletable: None, caplog: pytest.LogCaptureFixture
) -> None:
    CacheDirectory(home)
    (home / ".x.pc-0123456789ab.half").mkdir()
    (home / ".y.pc-0123456789ab..7-0.gone").mkdir()
    entry = add(images[0], Cache(directory=home))[0]
    assert ".y.pc-0123456789ab..7-0.gone: cannot be deleted: Permission denied; delete it by hand" in caplog.text
    dropped = drop(CacheDirectory(home), entry.name)
    assert (dropped.stays, dropped.freed_bytes) == ("", 0)
    assert {listed.state for listed in survey(CacheDirectory(home))} == {"dropped"}
    assert CompiledDataset(images[0], cache=home).stored.root == entry.path


def test_what_cannot_be_taken_away(images: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, target: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    entry = add(images[0], Cache(directory=home))[0]
    monkeypatch.setattr(Path, "rename", fail)
    stays = drop(CacheDirectory(home), entry.name).stays
    assert stays == f"{entry.path}: cannot be taken away: Permission denied; delete it by hand"


def test_lock_files_of_killed_processes_are_swept(images: Any, home: Path, left_in: LeftIn) -> None:
    CacheDirectory(home)
    (home / "x.pc-0123456789ab.lock").touch()
    held = try_lock(home / "y.pc-0123456789ab.lock")
    assert held is not None
    entry = add(images[0], Cache(directory=home))[0]
    assert left_in(home) == {entry.name, f"{entry.name}.lock", "y.pc-0123456789ab.lock"}
    held.release()
    assert sweep(CacheDirectory(home)) == 0
    assert left_in(home) == {entry.name, f"{entry.name}.lock"}


def test_progress_is_noted_while_the_index_is_checked(images: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes, plain = [], HeldLock.note

    def note(lock: HeldLock, stage: str, done_bytes: int = 0, total_bytes: int = 0) -> None:
        notes.append((stage, done_bytes, total_bytes))
        plain(lock, stage, done_bytes, total_bytes)

    monkeypatch.setattr(HeldLock, "note", note)
    monkeypatch.setattr(staging, "_NOTE_SECONDS", 0.0)
    add(images[0], Cache(directory=home), split="val")
    checked = [done for stage, done, _ in notes if stage == "checks the index" and done]
    assert len(checked) == 2
    assert checked == sorted(checked)


def test_who_waits_for_room_notes_the_progress_of_whom_it_waits_for(images: Any, home: Path, left_in: LeftIn) -> None:
    alone = try_lock(CacheDirectory(home).lock)
    assert alone is not None
    thread = threading.Thread(target=lambda: add(images[0], Cache(directory=home)))
    thread.start()
    until(lambda: any(name.endswith(".lock") for name in left_in(home)), "it does not begin")
    [name] = [name for name in left_in(home) if name.endswith(".lock")]
    for done in (1, 2):
        until(lambda: "waits" in getattr(read_owner(home / name), "stage", ""), "it does not wait")
        alone.note("reserves room", done, 3)
        until(lambda: getattr(read_owner(home / name), "done_bytes", 0) == done, "it notes nothing")  # noqa: B023
    alone.release()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("num_inodes", [1, 2, 3, 4, 6])
def test_no_inodes_left(small_disk: Path, images: Any, num_inodes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,nr_inodes={num_inodes}", small_disk], check=True)
    for if_full, error in (("disk", None), ("error", NoRoomError)):
        cache = Cache(directory=small_disk / "cache", if_full=if_full)
        if error is None:
            assert CompiledDataset(images[0], cache=cache).stored.root == images[0]
            continue
        with pytest.raises(error, match="No space left on device"):
            CompiledDataset(images[0], cache=cache)


def test_some_memory_stays_free_for_who_stages(small_disk: Path) -> None:
    assert room(small_disk, 0).reserve_bytes == MIN_RESERVE_BYTES == 64 << 20
    assert room(small_disk, 1 << 30).reserve_bytes == 1 << 30


@pytest.mark.parametrize("put", [Path.touch, lambda path: path.symlink_to("elsewhere")], ids=["file", "link"])
def test_something_else_in_the_place_of_a_half_made_entry(images: Any, home: Path, put: Callable[[Path], None]) -> None:
    entry = add(images[0], Cache(directory=home))[0]
    drop(CacheDirectory(home), entry.name)
    put(half := home / f".{entry.name}.half")
    with pytest.raises(ForeignDirectoryError, match=f"{half}: expected a half-made entry, found something else"):
        add(images[0], Cache(directory=home))
    assert os.path.lexists(half)
