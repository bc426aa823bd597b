from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from precompile.errors import FormatError
from precompile.format.shards import ShardMap

REPOSITORY = Path(__file__).resolve().parents[2]
Files = Callable[[int], tuple[list[Path], list[int]]]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """files(count): files of random bytes of different sizes, and the sizes."""

    def make(count: int) -> tuple[list[Path], list[int]]:
        rng = np.random.default_rng(count)
        sizes = rng.integers(1, 9000, count).tolist()
        paths = [tmp_path / f"{number}.flat" for number in range(count)]
        for path, size in zip(paths, sizes):
            path.write_bytes(rng.bytes(size))
        return paths, sizes

    return make


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("count", [1, 3, 512])
@pytest.mark.parametrize("one_range", [True, False])
def test_views_are_the_bytes_of_the_files(files: Files, count: int, one_range: bool) -> None:
    paths, sizes = files(count)
    shards = ShardMap(paths, sizes, one_range=one_range)
    assert (shards.window is not None) == one_range
    for path, size, start in zip(paths, sizes, shards.starts.tolist()):
        content = path.read_bytes()
        assert shards.view(start, size).tobytes() == content
        assert shards.view(start + size // 2, size - size // 2).tobytes() == content[size // 2 :]
        assert start % 64 == shards.view(start, 1).ctypes.data % 64 == 0


def test_the_window_is_all_shards_by_place(files: Files) -> None:
    paths, sizes = files(3)
    shards = ShardMap(paths, sizes)
    assert shards.window is not None
    for path, start, size in zip(paths, shards.starts.tolist(), sizes):
        assert shards.window[start : start + size].tobytes() == path.read_bytes()


@pytest.mark.parametrize("one_range", [True, False])
def test_a_view_outside_of_the_shards(files: Files, one_range: bool) -> None:
    paths, sizes = files(3)
    shards = ShardMap(paths, sizes, one_range=one_range)
    second = int(shards.starts[1])
    end = int(shards.starts[2]) + sizes[2]
    for place, length in [(-1, 1), (sizes[0], 1), (0, sizes[0] + 1), (second - 1, 1), (second - 1, 2),
                          (end, 1), (end - 1, 2), (2**62, 1), (0, 2**62), (0, -1)]:  # fmt: skip
        with pytest.raises(FormatError, match=f"a record at place {place} with {length} bytes lies outside"):
            shards.view(place, length)
    assert len(shards.view(end - 1, 1)) == 1


@pytest.mark.parametrize("one_range", [True, False])
def test_no_shards(one_range: bool) -> None:
    with pytest.raises(FormatError, match="lies outside of the shards"):
        ShardMap([], [], one_range=one_range).view(0, 1)


@pytest.mark.parametrize("one_range", [True, False])
def test_views_are_read_only(files: Files, one_range: bool) -> None:
    view = ShardMap(*files(2), one_range=one_range).view(0, 1)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


@pytest.mark.parametrize("one_range", [True, False])
def test_arrays_outlive_the_map(files: Files, one_range: bool) -> None:
    paths, sizes = files(3)
    shards = ShardMap(paths, sizes, one_range=one_range)
    held = [shards.view(int(start), size)[1:] for start, size in zip(shards.starts, sizes)]
    del shards
    gc.collect()
    for path in paths:
        content = path.read_bytes()
        path.unlink()
        assert held.pop(0).tobytes() == content[1:]


def test_the_addresses_are_given_back(files: Files) -> None:
    paths, sizes = files(3)

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(paths[0].parent))

    shards = ShardMap(paths, sizes)
    view = shards.view(0, 1)
    assert mapped() == 3
    del shards
    assert mapped() == 3
    del view
    gc.collect()
    assert mapped() == 0


@pytest.mark.parametrize("one_range", [True, False])
def test_no_descriptor_is_left(files: Files, one_range: bool) -> None:
    paths, sizes = files(20)
    before = descriptors()
    shards = ShardMap(paths, sizes, one_range=one_range)
    if one_range:
        assert descriptors() == before
    del shards
    gc.collect()
    assert descriptors() == before
    paths[-1].write_bytes(b"")
    with pytest.raises(FormatError):
        ShardMap(paths, sizes, one_range=one_range)
    gc.collect()
    assert descriptors() == before


@pytest.mark.parametrize("one_range", [True, False])
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "extended", "swapped", "folder"])
def test_a_file_that_is_not_as_expected_is_named(files: Files, damage: str, one_range: bool) -> None:
    paths, sizes = files(3)
    content = paths[1].read_bytes()
    paths[1].unlink()
    if damage == "folder":
        paths[1].mkdir()
    elif damage != "missing":
        new = {"truncated": content[:-1], "empty": b"", "extended": content + b"\0", "swapped": paths[0].read_bytes()}
        paths[1].write_bytes(new[damage])
    expected = {"missing": "the shard is missing", "folder": "expected a file, found a folder or a device"}.get(
        damage, rf"expected {sizes[1]} bytes, found \d+"
    )
    with pytest.raises(FormatError, match=f"1.flat: {expected}"):
        ShardMap(paths, sizes, one_range=one_range)


def test_sizes_that_add_up_to_nothing(files: Files) -> None:
    """Their sum wraps round in 64 bits: a range of that size would not hold the first shard."""
    paths, sizes = files(5)
    os.truncate(paths[0], 8 << 20)
    with pytest.raises(FormatError, match=rf"1.flat: expected {1 << 62} bytes, found {sizes[1]}"):
        ShardMap(paths, [8 << 20, 1 << 62, 1 << 62, 1 << 62, (1 << 62) - (8 << 20)])


@pytest.mark.parametrize("one_range", [True, False])
def test_a_forked_child_reads(files: Files, one_range: bool) -> None:
    paths, sizes = files(3)
    shards = ShardMap(paths, sizes, one_range=one_range)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, shards.view(int(shards.starts[2]), sizes[2]).tobytes())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == paths[2].read_bytes()
    assert os.waitpid(child, 0)[1] == 0
    assert shards.view(0, sizes[0]).tobytes() == paths[0].read_bytes()


def test_512_shards_open_with_64_descriptors(files: Files) -> None:
    paths, _ = files(512)
    script = """
import resource, sys
from pathlib import Path
from precompile.format.shards import ShardMap
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
paths = [Path(sys.argv[1]) / f"{number}.flat" for number in range(512)]
sizes = [path.stat().st_size for path in paths]
shards = ShardMap(paths, sizes)
for path, size, start in zip(paths, sizes, shards.starts.tolist()):
    assert shards.view(start, size).tobytes() == path.read_bytes()
print("read", len(paths))
"""
    command = [sys.executable, "-c", script, str(paths[0].parent)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "read 512\n"), done.stderr
