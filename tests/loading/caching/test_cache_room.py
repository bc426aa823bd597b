"""A RAM disk or a memory limit that is too small, before, during and after staging."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builds import REPOSITORY, assert_matches

from precompile import CompiledDataset, machine
from precompile.errors import NoRoomError
from precompile.loading.caching import copying, room
from precompile.loading.caching.options import Cache
from precompile.loading.caching.room import need_bytes

MakeSet = Callable[[int], Path]
LeftIn = Callable[[Path], set[str]]
STAGE = """
import sys
from pathlib import Path
from precompile.errors import PrecompileError
from precompile.loading.caching.options import Cache
from precompile.loading.caching.staging import add
try:
    print("staged", add(Path(sys.argv[1]), Cache(directory=sys.argv[2]))[1])
except PrecompileError as error:
    print(type(error).__name__, error)
"""


def fill(folder: Path, leave_bytes: int = 0) -> Path:
    """Somebody else's file, that leaves so much room."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, machine.free_bytes(folder) - leave_bytes)
    return filler


def assert_same(found: CompiledDataset, root: Path) -> None:
    expected = CompiledDataset(root)
    assert len(found) == len(expected)
    for number in range(len(expected)):
        assert np.array_equal(found[number]["image"], expected[number]["image"])


def test_a_set_that_is_larger_than_the_disk(small_disk: Path, mebibytes: MakeSet, left_in: LeftIn) -> None:
    home, root = small_disk / "cache", mebibytes(17)
    with pytest.raises(NoRoomError) as refused:
        CompiledDataset(root, cache=home)
    assert_matches(r"cache: no room for .*17.pc, generation 1: need 17\.9 MB, have 16\.8 MB \(16\.8 MB free there",
                   str(refused.value))  # fmt: skip
    assert_matches(
        r"of memory, of which .* [MG]B stay free; reserve_bytes or --reserve says how much\)", str(refused.value)
    )
    assert_matches(r"Cache\(if_full='disk'\)$", str(refused.value))
    assert left_in(home) == set()


def test_disk_by_choice(
    small_disk: Path, mebibytes: MakeSet, left_in: LeftIn, caplog: pytest.LogCaptureFixture
) -> None:
    home, root = small_disk / "cache", mebibytes(17)
    cached = CompiledDataset(root, cache=Cache(directory=home, if_full="disk"))
    assert cached.stored.root == root
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert_matches(r"17\.pc: reads from disk: .*need 17\.9 MB, have 16\.8 MB", caplog.text)
    assert_same(cached, root)
    assert left_in(home) == set()
    caplog.clear()
    assert_same(pickle.loads(pickle.dumps(cached)), root)
    assert caplog.records == []


def test_what_fits_is_staged_and_what_it_needs_is_what_it_takes(small_disk: Path, mebibytes: MakeSet) -> None:
    home, root = small_disk / "cache", mebibytes(14)
    before = machine.free_bytes(small_disk)
    cached = CompiledDataset(root, cache=home)
    assert_same(cached, root)
    entry = cached.stored.root
    files = {str(path): path.stat().st_size for path in entry.rglob("*") if path.is_file()}
    taken = before - machine.free_bytes(small_disk)
    assert need_bytes(files) - 8192 <= taken <= need_bytes(files) + 8192


def test_a_disk_that_others_filled_before(small_disk: Path, mebibytes: MakeSet, left_in: LeftIn) -> None:
    home, root = small_disk / "cache", mebibytes(8)
    filler = fill(small_disk, leave_bytes=4 << 20)
    with pytest.raises(NoRoomError, match=r"need 8\.4 MB, have 4\.2 MB"):
        CompiledDataset(root, cache=home)
    filler.unlink()
    filler = fill(small_disk)
    with pytest.raises(NoRoomError, match=r"need 8\.4 MB, have 0\.0 kB"):
        CompiledDataset(root, cache=home)
    assert left_in(home) == set()
    filler.unlink()
    assert_same(CompiledDataset(root, cache=home), root)


def fill_on_the_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take all that is free when the first block is copied."""
    plain, once = copying.Meter.add, threading.Lock()

    def add(meter: copying.Meter, num_bytes: int) -> None:
        if once.acquire(blocking=False):
            fill(folder)
        plain(meter, num_bytes)

    monkeypatch.setattr(copying.Meter, "add", add)


class Filler:
    """Takes all that is free, right before the third reservation."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._reserve, self._calls = folder, os.posix_fallocate, 0
        monkeypatch.setattr(room.os, "posix_fallocate", self)

    def __call__(self, descriptor: int, offset: int, num_bytes: int) -> None:
        self._calls += 1
        if self._calls == 3:
            filler = os.open(self._folder / "filler", os.O_WRONLY | os.O_CREAT)
            self._reserve(filler, 0, machine.free_bytes(self._folder))
            os.close(filler)
        self._reserve(descriptor, offset, num_bytes)


def test_a_disk_that_others_fill_between_two_steps(
    small_disk: Path, mebibytes: MakeSet, left_in: LeftIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, root = small_disk / "cache", mebibytes(8)
    monkeypatch.setattr(room, "STEP_BYTES", 1 << 20)
    Filler(small_disk, monkeypatch)
    with pytest.raises(
        NoRoomError, match=r"8\.pc, generation 1 \(No space left on device\): need 8\.4 MB, have 2\.1 MB"
    ):
        CompiledDataset(root, cache=home)
    assert left_in(home) == set()
    monkeypatch.undo()
    (small_disk / "filler").unlink()
    assert_same(CompiledDataset(root, cache=home), root)


def test_memory_that_others_take_between_two_steps(
    small_disk: Path, mebibytes: MakeSet, left_in: LeftIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the next step it is seen: taking it all the same would have the kernel kill somebody."""
    home, root = small_disk / "cache", mebibytes(8)
    monkeypatch.setattr(room, "STEP_BYTES", 1 << 20)
    reserve, free = os.posix_fallocate, iter([1 << 40] * 3 + [(64 << 20) + (1 << 10)] * 9)

    def memory() -> machine.MemoryLimits:
        return machine.MemoryLimits(1 << 40, None, None, next(free))

    monkeypatch.setattr(room.machine, "memory", memory)
    monkeypatch.setattr(room.os, "posix_fallocate", reserve)
    with pytest.raises(NoRoomError, match=r"the last \d\.\d MB of .*8\.pc, generation 1: need \d\.\d MB, have 1\.0 kB"):
        CompiledDataset(root, cache=Cache(directory=home, reserve_bytes=0))
    assert left_in(home) == set()


def test_a_disk_that_others_fill_afterwards(
    small_disk: Path, mebibytes: MakeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pages are reserved, so neither copying nor reading meets a full disk."""
    home, root = small_disk / "cache", mebibytes(8)
    fill_on_the_way(small_disk, monkeypatch)
    cached = CompiledDataset(root, cache=home)
    assert machine.free_bytes(small_disk) == 0
    assert_same(cached, root)
    assert_same(CompiledDataset(root, cache=home), root)


def test_parts_are_reserved_too(small_disk: Path, mebibytes: MakeSet, monkeypatch: pytest.MonkeyPatch,
                                tmp_path: Path, write_dataset: Any) -> None:  # fmt: skip
    from precompile.format.schema import FieldSpec

    root = tmp_path / "x.pc"
    fields = (FieldSpec("image", "uint8", (1 << 20,)), FieldSpec("other", "uint8", (1 << 18,)))
    write_dataset(root, fields, 20, splits={"train": 10, "val": 10}, num_shards=3)
    filler = fill(small_disk, leave_bytes=4 << 20)
    with pytest.raises(NoRoomError, match=r"x\.pc, generation 1, split val, fields image: need 10\.5 MB, have 4\.2 MB"):
        CompiledDataset(root, split="val", fields="image", cache=small_disk / "cache")
    filler.unlink()
    fill_on_the_way(small_disk, monkeypatch)
    cached = CompiledDataset(root, split="val", fields="image", cache=small_disk / "cache")
    assert machine.free_bytes(small_disk) == 0
    assert all(np.array_equal(*pair) for pair in zip(cached, CompiledDataset(root, split="val", fields="image")))


def test_memory_to_stay_free(small_disk: Path, mebibytes: MakeSet) -> None:
    root, available = mebibytes(8), machine.memory().available_bytes
    with pytest.raises(NoRoomError, match=r"need 8\.4 MB, have 0\.0 kB"):
        CompiledDataset(root, cache=Cache(directory=small_disk / "cache", reserve_bytes=2 * available))
    assert_same(CompiledDataset(root, cache=Cache(directory=small_disk / "cache", reserve_bytes=0)), root)


def test_memory_does_not_count_where_the_cache_is_no_ram_disk(tmp_path: Path) -> None:
    if machine.is_tmpfs(tmp_path):
        pytest.skip("the folder for temporary files is a RAM disk here")
    found = room.room(tmp_path, reserve_bytes=1 << 60)
    assert found.have_bytes == found.free_bytes > 0


def fake_group(folder: Path, limit_bytes: int, used_bytes: int) -> Path:
    group = folder / "sys/fs/cgroup/memory/job"
    group.mkdir(parents=True)
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text("4:memory:/job\n")
    (folder / "proc/meminfo").write_text("MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\n")
    (group / "memory.limit_in_bytes").write_text(f"{limit_bytes}\n")
    (group / "memory.usage_in_bytes").write_text(f"{used_bytes}\n")
    return folder


def test_a_group_with_little_memory(
    small_disk: Path, mebibytes: MakeSet, tmp_path: Path, left_in: LeftIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cgroup v1, its files faked: tmpfs pages are charged to it, so its room counts, less an eighth of its limit."""
    memory, group = machine.memory, fake_group(tmp_path / "fake", 1024 << 20, 890 << 20)
    monkeypatch.setattr(room.machine, "memory", lambda: memory(root=group))
    with pytest.raises(
        NoRoomError, match=r"need 8\.4 MB, have 6\.3 MB \(.*, 140\.5 MB of memory, of which 134\.2 MB stay"
    ):
        CompiledDataset(mebibytes(8), cache=small_disk / "cache")
    assert left_in(small_disk / "cache") == set()


def test_a_real_group_with_little_memory(memory_group: Callable[[int], Path], mebibytes: MakeSet) -> None:
    if not os.access("/dev/shm", os.W_OK) or not machine.is_tmpfs(Path("/dev/shm")):
        pytest.skip("no writable /dev/shm here")
    group, home = memory_group(80 << 20), Path(tempfile.mkdtemp(dir="/dev/shm", prefix="precompile-tests-"))
    script = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    command = ["sh", "-c", script, group, sys.executable, "-c", STAGE, mebibytes(64), home / "cache"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OPENBLAS_NUM_THREADS": "1"}
    try:
        for limit_bytes, expected in (
            (80 << 20, r"^NoRoomError .*need 67\.\d MB, have \d.* \(.*, of which 67\.1 MB stay free"),
            (400 << 20, "^staged True"),
        ):
            (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=60)
            assert done.returncode == 0, done.stderr
            assert_matches(expected, done.stdout)
    finally:
        shutil.rmtree(home)
