"""Many processes and threads that want the same: one copies, and whatever becomes of it, nobody waits for ever."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builds import REPOSITORY
from stagers import Stager

from precompile import CompiledDataset, machine
from precompile.errors import BusyError
from precompile.loading.caching import locks
from precompile.loading.caching.directory import CacheDirectory
from precompile.loading.caching.listing import survey
from precompile.loading.caching.locks import locked, read_owner, try_lock
from precompile.loading.caching.options import Cache
from precompile.loading.caching.staging import add

MakeSet = Callable[[int], Path]
StartStager = Callable[[Path, Path, str], Stager]

TOGETHER = """
import json, os, select, signal, sys, threading, zlib
from pathlib import Path
from precompile.format.stored import Stored
from precompile.loading.caching import copying
from precompile.loading.caching.options import Cache
from precompile.loading.caching.staging import add

root, home, times = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
plain = copying.Meter.add

def round_of(number):
    first, directory = home / f"first{number}", home / f"cache{number}"
    begin, go = os.pipe()
    results, out = os.pipe()

    def add_half(meter, num_bytes):
        plain(meter, num_bytes)
        if meter.done_bytes * 2 >= meter.total_bytes:
            try:
                with open(first, "x") as file:
                    file.write(f"{os.getpid()}.")
            except FileExistsError:
                return
            threading.Event().wait()

    pids = []
    for _ in range(8):
        pids.append(os.fork())
        if not pids[-1]:
            os.close(go)
            os.read(begin, 1)  # until all are there
            copying.Meter.add = add_half
            entry, is_new = add(root, Cache(directory=directory))
            stored = Stored(entry.path)
            checksums = [zlib.crc32(stored.record(sample)) for sample in range(stored.manifest.count)]
            os.write(out, json.dumps([is_new, str(entry.path), checksums]).encode() + b"\\n")
            os._exit(0)
    os.close(begin), os.close(out), os.close(go)
    while not first.exists() or not first.read_text().endswith("."):
        select.select([], [], [], 0.005)
    killed = int(first.read_text()[:-1])
    os.kill(killed, signal.SIGKILL)
    with os.fdopen(results) as lines:
        found = [json.loads(line) for line in lines]
    codes = [os.waitpid(pid, 0)[1] for pid in pids]
    assert sorted(codes) == [0] * 7 + [signal.SIGKILL], codes
    names = sorted(path.name for path in directory.iterdir())
    return {"found": found, "names": names}

print(json.dumps([round_of(number) for number in range(times)]))
"""


def run_together(root: Path, home: Path, times: int) -> None:
    command = [sys.executable, "-c", TOGETHER, *map(str, (root, home, times))]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 20 * times, env=environment)
    assert done.returncode == 0, done.stderr
    expected = CompiledDataset(root).stored.index.crc32.tolist()
    rounds = json.loads(done.stdout)
    assert len(rounds) == times
    for number, result in enumerate(rounds):
        entries = {path for _, path, _ in result["found"]}
        assert len(entries) == 1
        assert [is_new for is_new, _, _ in result["found"]].count(True) == 1
        assert all(checksums == expected for _, _, checksums in result["found"])
        name = Path(entries.pop()).name
        assert result["names"] == [".lock", ".precompile-cache", name, f"{name}.lock"], number


def test_eight_at_once_and_the_first_is_killed_half_way(mebibytes: MakeSet, tmp_path: Path) -> None:
    run_together(mebibytes(4), tmp_path, 2)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_eight_at_once_and_the_first_is_killed_half_way_many_times(mebibytes: MakeSet, tmp_path: Path) -> None:
    run_together(mebibytes(14), tmp_path, 20)


def test_a_process_that_is_stopped_half_way(mebibytes: MakeSet, home: Path, stager: StartStager) -> None:
    root = mebibytes(8)
    other = stager(root, home, "stop")
    with pytest.raises(BusyError) as stuck:
        CompiledDataset(root, cache=Cache(directory=home, stall_seconds=0.3))
    pattern = (
        rf"staging {root}, generation 1: pid {other.pid} on \S+ \(since .*, stopped; copies, .* of 8\.4 MB\) has the "
        rf"lock and made no progress for \d+ s; continue it \(kill -CONT {other.pid}\) or end it \(kill -9 {other.pid}"
    )
    stuck.match(pattern)
    [listed] = survey(CacheDirectory(home))
    assert listed.state == "being staged"
    assert f"pid {other.pid} on " in listed.progress
    assert other.go_on() == 0
    assert add(root, Cache(directory=home))[1] is False


def test_room_that_somebody_reserves_for_ever(mebibytes: MakeSet, home: Path, left_in: Any) -> None:
    other = try_lock(CacheDirectory(home).lock)
    assert other is not None
    other.note("reserves room", 10**6, 10**7)
    with pytest.raises(
        BusyError, match=rf"reserving room in {home}: pid {os.getpid()} .*reserves room, 1\.0 of 10\.0 MB"
    ):
        add(mebibytes(4), Cache(directory=home, stall_seconds=0.1))
    assert left_in(home) == set()
    other.release()
    assert add(mebibytes(4), Cache(directory=home))[1]


def test_a_lock_that_nobody_refers_to_is_free(tmp_path: Path) -> None:
    assert try_lock(tmp_path / "x.lock") is not None
    lock = try_lock(tmp_path / "x.lock")
    assert lock is not None
    lock.release()
    lock.release()


def test_progress_is_told(mebibytes: MakeSet, home: Path) -> None:
    told: list[tuple[int, int]] = []
    for split in (None, "all"):
        add(mebibytes(4), Cache(directory=home / str(split)), split=split, on_progress=lambda *step: told.append(step))
        assert told == sorted(told)
        assert told[-1][0] == told[-1][1] > 4 << 20
        told.clear()


def test_who_waits_says_for_whom(
    mebibytes: MakeSet,
    home: Path,
    stager: StartStager,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locks, "_LOG_SECONDS", 0.1)
    caplog.set_level(logging.INFO, "precompile")
    other = stager(mebibytes(8), home, "stop")
    with pytest.raises(BusyError):
        CompiledDataset(mebibytes(8), cache=Cache(directory=home, stall_seconds=0.8))
    waits = [record for record in caplog.records if f"waiting for pid {other.pid} on" in record.getMessage()]
    assert {record.levelno for record in waits} == {logging.WARNING}
    assert "8.4 MB" in waits[0].getMessage()


def test_a_process_that_is_killed_half_way(small_disk: Path, mebibytes: MakeSet, stager: StartStager,
                                           left_in: Any) -> None:  # fmt: skip
    """What it had reserved is free again before the next one looks for room."""
    home = small_disk / "cache"
    stager(mebibytes(14), home, "wait").kill()
    assert machine.free_bytes(small_disk) < 2 << 20
    [listed] = survey(CacheDirectory(home))
    assert listed.state == "half-made"
    assert listed.num_bytes > 14 << 20
    entry, is_new = add(mebibytes(14), Cache(directory=home))
    assert is_new
    assert left_in(home) == {entry.name, f"{entry.name}.lock"}


def test_what_a_killed_process_left_of_another_dataset_is_swept(
    small_disk: Path, mebibytes: MakeSet, stager: StartStager, left_in: Any
) -> None:
    home = small_disk / "cache"
    stager(mebibytes(14), home, "wait").kill()
    entry, _ = add(mebibytes(8), Cache(directory=home))
    assert left_in(home) == {entry.name, f"{entry.name}.lock"}


def test_what_is_being_staged_is_not_swept(mebibytes: MakeSet, home: Path, stager: StartStager) -> None:
    other = stager(mebibytes(14), home, "stop")
    add(mebibytes(8), Cache(directory=home))
    assert other.go_on() == 0
    assert add(mebibytes(14), Cache(directory=home))[1] is False


def test_an_interrupt_leaves_nothing(mebibytes: MakeSet, home: Path, stager: StartStager, left_in: Any) -> None:
    assert stager(mebibytes(8), home, "interrupt").interrupt() != 0
    assert left_in(home) == set()


def test_threads_stage_once(mebibytes: MakeSet, home: Path) -> None:
    root, found, begin = mebibytes(8), [], threading.Barrier(4)

    def open_it() -> None:
        begin.wait(30)
        found.append(add(root, Cache(directory=home)))

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(is_new for _, is_new in found) == [False, False, False, True]
    assert len({entry.path for entry, _ in found}) == 1


FORK = """
import os, select, sys
from pathlib import Path
from precompile.loading.caching.locks import try_lock
lock = try_lock(Path(sys.argv[1]))
child = os.fork()
if child:
    print(child, flush=True)
select.select([], [], [])
"""


def test_a_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    parent = subprocess.Popen([sys.executable, "-c", FORK, path], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert try_lock(path) is None
        assert read_owner(path).pid == parent.pid  # type: ignore[union-attr]
        parent.kill()
        parent.wait()
        os.kill(child, 0)  # alive
        with locked(path, what="a test", stall_seconds=20):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        parent.kill()
        parent.communicate()


def test_a_lock_file_that_was_removed_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    first = try_lock(path)
    assert first is not None
    assert try_lock(path) is None
    first.release(remove=True)
    second = try_lock(path)
    assert second is not None
    assert try_lock(path) is None
    second.release()
    assert path.exists()


def test_content_that_a_lock_file_cannot_have(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    for content in (b"", b"[]", b"{}", b'{"pid": "1"}', b"\xff" * 99, b"[" * 4000, bytes(1 << 16)):
        path.write_bytes(content)
        assert read_owner(path) is None
        lock = try_lock(path)
        assert lock is not None
        lock.release()


def test_the_children_of_a_process_that_staged_read_on(images: Any, home: Path) -> None:
    root, samples = images
    cached = CompiledDataset(root, fields="image", cache=home)
    pid = os.fork()
    if not pid:
        os._exit(0 if np.array_equal(cached[7].numpy(), samples[7]["image"]) else 1)
    assert os.waitpid(pid, 0)[1] == 0
