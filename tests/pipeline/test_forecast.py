"""A dry run states what the build then does, within its ranges, and writes nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builds import save_image, unchanged
from hypothesis import given
from hypothesis import strategies as st
from inline_executor import inline  # noqa: F401  (a fixture)
from poison import MISBEHAVING_DECODER

import precompile
from precompile import machine
from precompile.pipeline.extrapolation import SAMPLED, spread
from precompile.pipeline.options import Forecast, Range, Summary

in_this_process = pytest.mark.usefixtures("inline")


def dry_run(raw: Path, out: Path, **options: object) -> Forecast:
    """Nothing is written, neither where OUT lies nor beside it, and temporary folders are removed."""
    with unchanged(raw, out), tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        before = sorted(path for path in out.parent.rglob("*"))
        found = precompile.build(raw, out, dry_run=True, quiet=True, **{"workers": 1, **options}).forecast
        assert sorted(path for path in out.parent.rglob("*")) == before
        assert os.listdir(folder) == []
    assert found is not None
    return found


def build(raw: Path, out: Path, **options: object) -> Summary:
    return precompile.build(raw, out, quiet=True, workers=1, allow_shrink=True, **options)


def stored_bytes(out: Path) -> int:
    return sum(shard.bytes for shard in precompile.CompiledDataset(out).manifest.shards)


def assert_holds(range_: Range, value: float) -> None:
    assert range_.low <= value <= range_.high
    assert range_.low <= range_.expected <= range_.high


def timeless(forecast: Forecast) -> Forecast:
    return replace(forecast, seconds=Range(0, 0, 0), free_bytes=0)


def make(raw: Path, sides: list[int]) -> Path:
    """A file for each side; those that are there stay."""
    for number, side in enumerate(sides):
        path = raw / f"c{number % 2}" / f"{number:04d}.bmp"
        if not path.exists():
            save_image(path, number, side=side)
    return raw


SIDES: dict[str, Callable[[np.random.Generator], list[int]]] = {
    "equal": lambda rng: [20] * 150,
    "uniform": lambda rng: rng.integers(4, 60, 150).tolist(),
    "a few": lambda rng: rng.integers(4, 60, 7).tolist(),
    "one alone": lambda rng: [33],
    "every second is large": lambda rng: [6, 90] * 80,
    "few are very large": lambda rng: np.where(rng.random(300) < 0.02, 200, 8).tolist(),
    "in ascending order": lambda rng: list(range(2, 152)),
}


@in_this_process
@pytest.mark.parametrize("store", ["lmdb", "flat"])
@pytest.mark.parametrize("keys", [{}, {"shard_size": 30_000}])
@pytest.mark.parametrize("sides", list(SIDES))
def test_what_is_written_lies_within_the_range(tmp_path: Path, sides: str, keys: dict[str, int], store: str) -> None:
    raw, out = make(tmp_path / "raw", SIDES[sides](np.random.default_rng(0))), tmp_path / "out"
    forecast = dry_run(raw, out, store=store, **keys)
    summary = build(raw, out, store=store, **keys)
    assert_holds(forecast.bytes, summary.bytes)
    assert forecast.bytes.high < 2 * summary.bytes + 40_000 * forecast.shards
    assert (forecast.inputs, forecast.sampled, forecast.failed) == (summary.planned, min(64, summary.planned), 0)
    if sides == "equal":
        assert forecast.bytes.expected == pytest.approx(summary.bytes, rel=0.05)
        assert forecast.shards == len(precompile.CompiledDataset(out).manifest.shards)


@in_this_process
def test_clips(clips: Path, tmp_path: Path) -> None:
    forecast = dry_run(clips, tmp_path / "out")
    assert_holds(forecast.bytes, build(clips, tmp_path / "out").bytes)


@in_this_process
def test_two_dry_runs_say_the_same(tmp_path: Path) -> None:
    raw = make(tmp_path / "raw", SIDES["uniform"](np.random.default_rng(0)))
    assert timeless(dry_run(raw, tmp_path / "out")) == timeless(dry_run(raw, tmp_path / "out", workers=7))


@in_this_process
def test_inputs_that_fail_are_counted_and_take_no_room(tmp_path: Path) -> None:
    raw = make(tmp_path / "raw", [20] * 200)
    for path in sorted(raw.rglob("*.bmp"))[::3]:
        path.write_bytes(b"broken")
    forecast = dry_run(raw, tmp_path / "out")
    summary = build(raw, tmp_path / "out")
    assert_holds(forecast.bytes, summary.bytes)
    assert 0.15 < forecast.failed / forecast.sampled < 0.5


@in_this_process
def test_if_every_sampled_input_fails_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for number in range(100):
        (tmp_path / "raw" / f"{number}.png").write_bytes(b"broken")
    forecast = dry_run(tmp_path / "raw", tmp_path / "out")
    assert (forecast.inputs, forecast.sampled, forecast.failed) == (100, 64, 64)
    assert (forecast.bytes, forecast.shards) == (Range(0, 0, 0), 0)


def test_inputs_that_kill_or_hang_a_worker_are_failures(tmp_path: Path, in_workers: Callable[[str], Path]) -> None:
    raw = make(tmp_path / "raw", [8] * 4)
    for number, marker in enumerate([b"SEGV", b"HANG"]):
        path = raw / f"c{number}" / f"000{number}.bmp"
        path.write_bytes(path.read_bytes() + marker)
    in_workers(MISBEHAVING_DECODER)
    forecast = dry_run(raw, tmp_path / "out", timeout_seconds=1)
    assert (forecast.sampled, forecast.failed) == (4, 2)
    assert forecast.seconds.expected > 1  # the build will wait for it, too


@in_this_process
@pytest.mark.parametrize("store", ["lmdb", "flat"])
def test_only_what_is_new_counts(tmp_path: Path, store: str) -> None:
    raw, out = make(tmp_path / "raw", [20] * 40), tmp_path / "out"
    build(raw, out, store=store)
    make(raw, [20] * 40 + [30] * 10)
    forecast = dry_run(raw, out, store=store)
    assert (forecast.inputs, forecast.sampled) == (10, 10)
    before = stored_bytes(out)
    build(raw, out, store=store)
    assert_holds(forecast.bytes, stored_bytes(out) - before)


@in_this_process
def test_nothing_to_do_needs_no_forecast(tmp_path: Path) -> None:
    raw, out = make(tmp_path / "raw", [20] * 4), tmp_path / "out"
    build(raw, out)
    with unchanged(out):
        summary = precompile.build(raw, out, dry_run=True, quiet=True)
    assert (summary.forecast, summary.planned, summary.reused) == (None, 4, 4)


@in_this_process
@pytest.mark.parametrize("edit", ["touched", "renamed", "rewritten", "half rewritten", "copied"])
def test_known_contents_are_looked_up(tmp_path: Path, edit: str) -> None:
    raw, out = make(tmp_path / "raw", [20] * 200), tmp_path / "out"
    build(raw, out)
    before = stored_bytes(out)
    for number, path in enumerate(sorted(raw.rglob("*.bmp"))):
        if edit == "touched":
            os.utime(path)
        elif edit == "renamed":
            path.rename(path.with_name(f"new{number}.bmp"))
        elif edit == "copied":
            path.with_name(f"copy{number}.bmp").write_bytes(path.read_bytes())
        elif edit == "rewritten" or number % 2:
            save_image(path, number + 1000, side=20)
        else:
            os.utime(path)
    forecast = dry_run(raw, out)
    assert (forecast.inputs, forecast.sampled, forecast.failed) == (200, 64, 0)
    if edit in ("touched", "renamed", "copied"):
        assert (forecast.bytes.low, forecast.bytes.expected) == (0, 0)
    build(raw, out)
    assert_holds(forecast.bytes, stored_bytes(out) - (0 if edit == "rewritten" else before))


@in_this_process
def test_records_that_are_copied_out_of_old_shards_count(tmp_path: Path) -> None:
    raw, out = make(tmp_path / "raw", [20] * 50), tmp_path / "out"
    build(raw, out, store="flat")
    for path in sorted(raw.rglob("*.bmp"))[:30]:
        path.unlink()
    forecast = dry_run(raw, out, store="flat")
    assert (forecast.inputs, forecast.sampled) == (20, 0)
    assert_holds(forecast.bytes, build(raw, out, store="flat").bytes)
    assert forecast.bytes.low >= 20 * 1200


@in_this_process
def test_free_and_temporary_room_are_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = make(tmp_path / "raw", [8] * 10)
    monkeypatch.setattr(machine, "free_bytes", lambda path: 123 if path == tmp_path / "none" / "out" else 0)
    forecast = dry_run(raw, tmp_path / "none" / "out")
    assert forecast.free_bytes == 123
    names = sum(2 * len(path.relative_to(raw).as_posix()) + len(str(raw)) for path in raw.rglob("*.bmp"))
    assert names + 10 * 100 < forecast.temporary_bytes < names + 10 * 1000


@given(st.integers(0, 10_000))
def test_the_sample_is_spread_and_always_the_same(count: int) -> None:
    places = spread(count)
    assert len(places) == min(SAMPLED, count)
    assert places.tolist() == spread(count).tolist() == sorted(set(places.tolist()))
    if count:
        assert 0 <= places.min() <= places.max() < count
        assert np.diff(np.concatenate([[0], places, [count]])).max() <= 2 * count / SAMPLED + 2
    if count > 10 * SAMPLED:
        assert len(set(np.diff(places).tolist())) > 1  # a period in the source cannot hide from it
