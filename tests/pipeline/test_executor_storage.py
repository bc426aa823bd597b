"""What a worker does when the storage fails under it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from poison import FAILING_READS

import precompile
from precompile.errors import StorageError


@pytest.fixture
def reads(tmp_path: Path, in_workers: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """reads(number, failures): the first `failures` reads of bad.png fail with that error number."""

    def install(number: int, failures: int) -> None:
        monkeypatch.setenv("COUNTER", str(tmp_path / "counter"))
        (tmp_path / "counter").write_text("")
        monkeypatch.setenv("ERRNO", str(number))
        monkeypatch.setenv("FAILURES", str(failures))
        in_workers(FAILING_READS)

    return install


@pytest.fixture
def images(tmp_path: Path, make_photos: Callable[..., Path]) -> Path:
    root = make_photos(tmp_path / "raw", count=4, classes=1, splits=(), size=(8, 8), suffix=".png")
    (root / "class0" / "0000.png").rename(root / "class0" / "bad.png")
    return root


def test_a_passing_read_error_is_no_failure(images: Path, tmp_path: Path, reads: Callable[..., None]) -> None:
    reads(5, 2)
    summary = precompile.build(images, tmp_path / "out", workers=1, quiet=True)
    assert (summary.compiled, summary.quarantined) == (4, 0)


@pytest.mark.parametrize(("number", "reason"), [(13, "Permission denied"), (2, "is gone"), (5, "Input/output error")])
def test_storage_errors_fail_the_build_and_are_never_quarantined(
    images: Path, tmp_path: Path, reads: Callable[..., None], number: int, reason: str
) -> None:
    reads(number, 1000)
    with pytest.raises(StorageError, match=rf"cannot read .*bad\.png: .*{reason}"):
        precompile.build(images, tmp_path / "out", workers=1, quiet=True)
    assert not (tmp_path / "out" / "manifest.json").exists()
