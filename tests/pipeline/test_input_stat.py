from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from precompile.errors import PrecompileError, SourceError, StorageError
from precompile.pipeline.input_stat import MISSING, STAT_FIELDS, pack_stat, stat_array, stat_bytes, stat_file


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def loop(folder: Path) -> Path:
    (folder / "loop").symlink_to("loop")
    return folder / "loop"


def below_a_file(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file" / "x"


NO_FILES: list[tuple[Callable[[Path], Path], type[PrecompileError], str]] = [
    (lambda folder: folder / "none", SourceError, r"none: no such file$"),
    (below_a_file, SourceError, r"file/x: no such file$"),
    (lambda folder: folder, SourceError, r"expected a file, found something else"),
    (pipe, SourceError, r"pipe: expected a file, found something else; take it out of the source"),
    (loop, StorageError, r"^cannot read .*/loop: Too many levels of symbolic links"),
    (lambda folder: folder / ("x" * 300), StorageError, r"^cannot read .*xxx: File name too long"),
]


def test_the_fields_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("a")
    found = os.stat(tmp_path / "a")
    row = stat_file(tmp_path / "link", missing_is_planned=False)
    assert dict(zip(STAT_FIELDS, row, strict=True)) == {
        "size": 3, "mtime_ns": found.st_mtime_ns, "ctime_ns": found.st_ctime_ns, "inode": found.st_ino}  # fmt: skip


@pytest.mark.parametrize(("make", "error", "message"), NO_FILES)
def test_what_is_no_file(
    tmp_path: Path, make: Callable[[Path], Path], error: type[PrecompileError], message: str
) -> None:
    path = make(tmp_path)
    with pytest.raises(error, match=message):
        stat_file(path, missing_is_planned=False)
    assert stat_file(str(path), missing_is_planned=True) == (MISSING, 0, 0, 0)


def test_bytes_of_one_length_differ() -> None:
    rows = {stat_bytes(bytes([number, 0, 0])) for number in range(256)}
    assert {row[0] for row in rows} == {3}
    assert {row[2:] for row in rows} == {(0, 0)}
    assert len(rows) == 256
    assert stat_array(pack_stat([value for row in rows for value in row])).shape == (256, 4)
    assert {row[1] < 0 for row in rows} == {True, False}
    assert stat_bytes(b"abc") == stat_bytes(b"abc")


def test_large_inodes_stay_apart() -> None:
    inodes = [0, 2**63 - 1, 2**63, 2**64 - 1]
    array = stat_array(pack_stat([value for inode in inodes for value in (1, -5, 3, inode)]))
    assert array.dtype == np.int64
    np.testing.assert_array_equal(array[:, :3], [[1, -5, 3]] * 4)
    assert array[:, 3].tolist() == [0, 2**63 - 1, -(2**63), -1]
