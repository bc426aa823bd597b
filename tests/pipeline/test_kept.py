"""An interrupted build whose source has changed goes on all the same: what was finished and still fits is used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builds import events, save_image, snapshot
from inline_executor import InlineExecutor, inline  # noqa: F401  (a fixture)

import precompile
from precompile.errors import StorageError
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.options import Summary
from precompile.pipeline.verify import verify

pytestmark = pytest.mark.usefixtures("inline")


class Stopped(BaseException):
    """Stands for a kill."""


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for number in range(24):
        save_image(tmp_path / "raw" / f"c{number % 3}" / f"{number:02d}.png", number)
    return tmp_path / "raw"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def build(raw: Path, out: Path, **options: object) -> Summary:
    return precompile.build(raw, out, quiet=True, workers=1, store="flat", shard_size=800, **options)


def stop_after(shards: int, raw: Path, out: Path, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
    run = InlineExecutor.run

    def stopping(self: InlineExecutor, tasks: list, **alone: object):
        for number, receipt in enumerate(run(self, tasks, **alone), 1):
            if number >= shards:
                raise Stopped
            yield receipt

    with monkeypatch.context() as patch:
        patch.setattr(InlineExecutor, "run", stopping)
        with pytest.raises(Stopped):
            build(raw, out, **options)


def test_a_grown_source_goes_on(raw: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    for night in range(3):
        stop_after(2, raw, out, monkeypatch)
        save_image(raw / "c0" / f"new{night}.png", 100 + night)
    assert not (out / "manifest.json").exists()
    summary = build(raw, out, log_file=log)
    assert (summary.planned, summary.compiled, summary.quarantined) == (27, 27, 0)
    started = next(row for row in events(log) if row["event"] == "started")
    assert started["resumed"] >= 6
    assert started["inputs"] < 20
    fresh = build(raw, tmp_path / "fresh")
    assert summary.fingerprint == fresh.fingerprint
    assert verify(out, full=True) == []
    used = {shard.file for shard in precompile.CompiledDataset(out).manifest.shards}
    assert {path.name for path in (out / "shards").iterdir()} == used
    assert list(BuildDirs(out).work.iterdir()) == []


def test_what_no_longer_fits_is_compiled(raw: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(4, raw, out, monkeypatch)
    for number, path in enumerate(sorted(raw.rglob("*.png"))):
        if number % 3 == 0:
            save_image(path, 200 + number)
        elif number % 3 == 1 and number < 12:
            path.unlink()
        elif number % 3 == 2 and number < 12:
            os.utime(path)
    summary = build(raw, out)
    assert summary.fingerprint == build(raw, tmp_path / "fresh").fingerprint
    assert verify(out, full=True) == []


def test_another_recipe_or_a_rebuild_uses_nothing_of_it(
    raw: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    stop_after(3, raw, out, monkeypatch)
    save_image(raw / "c0" / "new.png", 100)
    build(raw, out, size=4, log_file=log)
    stop_after(3, raw, out, monkeypatch, size=5)
    build(raw, out, size=5, rebuild=True, log_file=log)
    assert [row["resumed"] for row in events(log) if row["event"] == "started"] == [0, 0]


def test_a_second_generation_goes_on_too(raw: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(raw, out)
    for number in range(100, 124):
        save_image(raw / "c1" / f"{number}.png", number)
    stop_after(3, raw, out, monkeypatch)
    save_image(raw / "c0" / "new.png", 99)
    log = tmp_path / "log"
    summary = build(raw, out, log_file=log)
    assert (summary.planned, summary.compiled, summary.reused) == (49, 25, 24)
    assert next(row["resumed"] for row in events(log) if row["event"] == "started") == 3
    assert summary.fingerprint == build(raw, tmp_path / "fresh").fingerprint


def test_a_kept_shard_that_is_gone_is_made_again(raw: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(3, raw, out, monkeypatch)
    save_image(raw / "c0" / "new.png", 99)
    stop_after(1, raw, out, monkeypatch)
    assert len(list(BuildDirs(out).kept.iterdir())) == 3
    next((out / "shards").iterdir()).unlink()
    next(BuildDirs(out).kept.iterdir()).write_bytes(b"damaged")
    assert build(raw, out).compiled == 25
    assert verify(out, full=True) == []


@pytest.mark.parametrize("name", ["build", "build/plan", "build/receipts", "build/workers", "shards", "generations"])
def test_a_link_in_the_place_of_a_folder_is_refused_and_its_target_left_alone(
    raw: Path, out: Path, tmp_path: Path, name: str
) -> None:
    build(raw, out)
    save_image(raw / "c0" / "new.png", 99)
    foreign = tmp_path / "foreign"
    (foreign / "below").mkdir(parents=True)
    (foreign / "below" / "precious").write_text("mine")
    link = out / name
    if link.exists():
        link.rename(tmp_path / "moved")
    link.symlink_to(foreign)
    before = snapshot(foreign)
    with pytest.raises(StorageError, match=rf"{name}: expected a folder that precompile made, found a link"):
        build(raw, out)
    assert snapshot(foreign) == before
