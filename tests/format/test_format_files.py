"""Opening files: what is no file is an error that names it, and never a wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from precompile.errors import FormatError
from precompile.format.files import open_regular, read_whole

NO_FILES: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a folder": lambda path: path.symlink_to(path.parent),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_named(tmp_path: Path, kind: str) -> None:
    NO_FILES[kind](tmp_path / "x")
    before = os.listdir("/proc/self/fd")
    for read in (open_regular, lambda path: read_whole(path, 10)):
        with pytest.raises(FormatError, match="/x: expected a file, found a folder or a device"):
            read(tmp_path / "x")
    assert os.listdir("/proc/self/fd") == before


def test_a_link_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("x")
    with pytest.raises(FormatError, match=r"/x: cannot be read: .*symbolic link"):
        open_regular(tmp_path / "x")


@pytest.mark.parametrize("name", ["nothing", "file/below"])
def test_nothing_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / name)


def test_files_are_read_up_to_a_size(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")
    assert read_whole(tmp_path / "x", 10) == b"0123456789"
    with pytest.raises(FormatError, match="/x: expected at most 9 bytes, found 10"):
        read_whole(tmp_path / "x", 9)
