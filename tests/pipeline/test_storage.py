from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from precompile.errors import StorageError
from precompile.pipeline import storage


@pytest.fixture
def failing_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Error numbers that the next reads fail with; waits take no time."""
    errors: list[int] = []
    real = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if errors:
            number = errors.pop(0)
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
    return errors


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN])
def test_a_passing_error_is_retried(tmp_path: Path, failing_reads: list[int], number: int) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    failing_reads += [number, number]
    assert storage.read_file(tmp_path / "a") == b"abc"


def test_a_lasting_error_names_the_file(tmp_path: Path, failing_reads: list[int]) -> None:
    failing_reads += [errno.EIO] * 20
    with pytest.raises(StorageError, match=r"cannot read .*/a: Input/output error; mend the storage, then run"):
        storage.read_file(tmp_path / "a")
    assert failing_reads, "it gives up"


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOENT, "it is gone, or its folder is; build again on a source at rest"),
        (errno.EACCES, "Permission denied; give the building user access"),
    ],
)
def test_other_errors_are_not_retried(tmp_path: Path, failing_reads: list[int], number: int, message: str) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    failing_reads.append(number)
    with pytest.raises(StorageError, match=message):
        storage.read_file(tmp_path / "a")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_says_what_to_do(number: int) -> None:
    error = storage.storage_error(OSError(number, os.strerror(number)), "cannot write out")
    assert (
        str(error)
        == f"cannot write out: {os.strerror(number)}; free some space, then run the same command again to go on"
    )


def test_storage_errors_wraps_once() -> None:
    expected = pytest.raises(StorageError, match=r"^inner: No space")
    with expected, storage.storage_errors("outer"), storage.storage_errors("inner"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_write_atomically_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    for data in (b"old", b"new"):
        storage.write_atomically(tmp_path / "file", data)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"new"}


def test_empty_dir_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"data")
    work = tmp_path / "work"
    (work / "sub" / "sub").mkdir(parents=True)
    (work / "sub" / "file").write_bytes(b"")
    (work / "link").symlink_to(tmp_path / "precious")
    storage.empty_dir(work)
    assert list(work.iterdir()) == []
    assert (tmp_path / "precious" / "file").read_bytes() == b"data"
