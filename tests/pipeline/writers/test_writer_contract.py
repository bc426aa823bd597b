"""What every shard writer promises."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precompile.errors import RecipeError
from precompile.format.shards import ShardMap
from precompile.pipeline.writers import open_writer, suffix

REPOSITORY = Path(__file__).resolve().parents[3]
Records = Callable[[list[int]], list[np.ndarray]]
Write = Callable[[str, Path, list[np.ndarray]], np.ndarray]

lengths = st.one_of(
    st.integers(1, 300), st.sampled_from([63, 64, 65, 63_936, 63_999, 64_000, 64_001]), st.integers(1, 300_000)
)
mixes = st.one_of(
    st.lists(lengths, min_size=1, max_size=40),
    st.builds(lambda length, count: [length] * count, st.integers(1, 70_000), st.integers(1, 60)),
    st.builds(lambda before, after: [*before, 5_000_000, *after], st.lists(lengths, max_size=3), st.lists(lengths)),
)


@pytest.fixture(scope="module", params=["lmdb", "flat"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def check_shard(store: str, folder: Path, records: list[np.ndarray], write: Write) -> None:
    path = folder / "one"
    offsets = write(store, path, records)
    assert (offsets.dtype, offsets.shape) == (np.int64, (len(records),))
    assert not (offsets % 64).any()
    ends = offsets + [len(record) for record in records]
    by_offset = np.argsort(offsets)
    assert (offsets[by_offset][1:] >= ends[by_offset][:-1]).all()
    content = path.read_bytes()
    shards = ShardMap([path], [len(content)])
    for record, offset in zip(records, offsets.tolist()):
        assert content[offset : offset + len(record)] == record.tobytes()
        view = shards.view(offset, len(record))
        assert np.array_equal(view, record)
        assert view.ctypes.data % 64 == 0
    assert np.array_equal(write(store, folder / "two", records), offsets)
    assert (folder / "two").read_bytes() == content
    assert sorted(os.listdir(folder)) == ["one", "two"]


@settings(max_examples=40, deadline=None)
@given(lengths=mixes)
def test_records_lie_where_the_writer_says(store: str, lengths: list[int], records: Records, write: Write) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_shard(store, Path(folder), records(lengths), write)


@pytest.mark.parametrize(
    "lengths",
    [
        [1], [64], [64] * 1000, [1] * 5000, list(range(1, 700)), [63_999], [64_000], [64_001], [63_999, 64_000, 64_001],
        [64_000, 1], [1, 64_000], [1, 64_000, 1], [5_000_000], [1, 5_000_000, 1], [63_936] * 9, [256_000] * 3,
        [64] * 4000 + [1], [32_000] * 8 + [64], [255_999, 1, 256_001], [16_848], [16_849], [100_000] * 400,
    ],
    ids=lambda lengths: f"{len(lengths)}x{lengths[0]}..{lengths[-1]}",
)  # fmt: skip
def test_nasty_lengths(store: str, lengths: list[int], tmp_path: Path, records: Records, write: Write) -> None:
    check_shard(store, tmp_path, records(lengths), write)


def test_a_shard_without_records(store: str, tmp_path: Path, write: Write) -> None:
    assert write(store, tmp_path / "shard", []).shape == (0,)


def test_order_matters_and_nothing_else(store: str, tmp_path: Path, records: Records, write: Write) -> None:
    made = records([100, 70_000, 100, 3000])
    write(store, tmp_path / "a", made)
    write(store, tmp_path / "b", [record.copy() for record in made])
    write(store, tmp_path / "c", made[::-1])
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


@pytest.mark.parametrize("count", [0, 1, 700])
def test_abort_removes_the_file(store: str, count: int, tmp_path: Path, records: Records) -> None:
    writer = open_writer(store, tmp_path / "shard")
    for record in records([64_000] * count):
        writer.append(record)
    writer.abort()
    assert list(tmp_path.iterdir()) == []
    writer.abort()


def test_an_existing_file_is_left_alone(store: str, tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        open_writer(store, tmp_path / "shard")
    assert (tmp_path / "shard").read_bytes() == b"precious"


def test_a_folder_that_is_not_there(store: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_writer(store, tmp_path / "no" / "shard")


@pytest.mark.parametrize("limit_bytes", [0, 4096, 100_000, 2_000_000])
def test_a_file_that_may_not_grow_is_an_os_error(store: str, limit_bytes: int, tmp_path: Path) -> None:
    script = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from precompile.pipeline.writers import open_writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
path, writer = Path(sys.argv[1]) / "shard", None
try:
    writer = open_writer(sys.argv[2], path)
    for _ in range(40):
        writer.append(np.ones(100_000, np.uint8))
    writer.commit()
except OSError as error:
    if writer is not None:
        writer.abort()
    sys.stdout.write(f"refused {path.exists()}")
"""
    command = [sys.executable, "-c", script, str(tmp_path), store, str(limit_bytes)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "refused False"), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small file system here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_enospc(store: str, small_disk: Path, records: Records) -> None:
    with pytest.raises(OSError, match="No space left on device") as caught:
        _write_or_abort(store, small_disk / "shard", records([100_000] * 400))
    assert caught.value.errno == errno.ENOSPC
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_is_full_already_leaves_no_file(store: str, small_disk: Path, records: Records) -> None:
    (small_disk / "other").write_bytes(bytes(2 << 20))
    with pytest.raises(OSError, match="No space left on device") as caught:
        _write_or_abort(store, small_disk / "shard", records([1]))
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in small_disk.iterdir()] == ["other"]


def _write_or_abort(store: str, path: Path, records: list[np.ndarray]) -> None:
    writer = open_writer(store, path)
    try:
        for record in records:
            writer.append(record)
        writer.commit()
    except OSError:
        writer.abort()
        raise


def test_tmpfs_is_the_flat_writer() -> None:
    assert [suffix(store) for store in ("lmdb", "flat", "tmpfs")] == ["lmdb", "flat", "flat"]


@pytest.mark.parametrize("store", ["zip", "os.path", "../lmdb", "_lmdb_walk"])
def test_an_unknown_store(store: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="flat, lmdb"):
        open_writer(store, tmp_path / "shard")
    assert list(tmp_path.iterdir()) == []
