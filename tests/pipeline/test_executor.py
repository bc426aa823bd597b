"""Decoders that crash, hang or raise odd errors cost their file, never the build."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from builds import quarantine
from poison import MISBEHAVING_DECODER, mark
from watched import Watch

import precompile
from precompile.errors import BuildFailedError
from precompile.pipeline.executors import local


@pytest.mark.parametrize(
    ("marker", "error", "message"),
    [
        (b"SEGV", "WorkerDied", "the decoder ended its process (SIGSEGV)"),
        (b"ABRT", "WorkerDied", "the decoder ended its process (SIGABRT)"),
        (b"EXIT", "WorkerDied", "the decoder ended its process (exit status 3)"),
        (b"CTRL", "WorkerDied", "the decoder ended its process"),
        (b"QUIT", "WorkerDied", "the decoder ended its process (exit status 0)"),
        (b"ODD ", "WorkerDied", "the decoder ended its process (exit status 1)"),
        (b"HANG", "TimeoutError", "not finished after 1 s (--timeout)"),
        (b"DEEP", "ContentError", "maximum recursion depth exceeded"),
        (b"MEMO", "MemoryError", "MemoryError"),
        (b"LINE", "ContentError", "one two"),
    ],
)
def test_one_bad_decoder_costs_one_file(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], marker: bytes, error: str, message: str
) -> None:
    bad = raw / "class1" / "bad.jpg"
    bad.write_bytes(marker)
    in_workers(MISBEHAVING_DECODER)
    summary = precompile.build(
        raw, tmp_path / "out", workers=2, shard_size=4000, timeout_seconds=1, quiet=True, order="source"
    )
    assert (summary.planned, summary.compiled, summary.quarantined, summary.exit_code) == (25, 24, 1, 3)
    row = quarantine(tmp_path / "out")["class1/bad.jpg"]
    assert (row["stage"], row["error"], row["size"], row["path"]) == ("decode", error, 4, str(bad))
    assert row["xxh3"] == xxhash.xxh3_64_hexdigest(marker)
    assert row["message"].startswith(message)
    assert "\n" not in row["message"]
    assert [str(failure) for failure in summary.failures] == [f"class1/bad.jpg: decode: {row['message']}"]
    assert len(precompile.CompiledDataset(tmp_path / "out")) == 24


def test_many_bad_decoders_cost_only_their_files(raw: Path, tmp_path: Path, in_workers: Callable[[str], Path]) -> None:
    for number, marker in enumerate([b"SEGV", b"ABRT", b"EXIT", b"SEGV", b"MEMO", b"QUIT", b"none"]):
        (raw / f"class{number % 3}" / f"bad{number}.jpg").write_bytes(marker)
    in_workers(MISBEHAVING_DECODER)
    summary = precompile.build(raw, tmp_path / "out", workers=2, shard_size=4000, quiet=True)
    assert (summary.planned, summary.compiled, summary.quarantined) == (31, 24, 7)
    assert {key.split("/")[1] for key in quarantine(tmp_path / "out")} == {f"bad{number}.jpg" for number in range(7)}
    assert not any("bad" in key for key in precompile.CompiledDataset(tmp_path / "out").keys)


def test_a_crash_is_tried_twice_and_then_left_alone(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path]
) -> None:
    (raw / "class1" / "bad.jpg").write_bytes(b"SEGV")
    in_workers(MISBEHAVING_DECODER)
    precompile.build(raw, tmp_path / "out", workers=1, quiet=True)
    assert quarantine(tmp_path / "out")["class1/bad.jpg"]["attempts"] == 2


def test_workers_that_cannot_start_fail_the_build(raw: Path, tmp_path: Path, in_workers: Callable[[str], Path]) -> None:
    in_workers("import os, sys; sys.stderr.write('no licence\\n'); sys.stderr.flush(); os._exit(9)")
    with pytest.raises(BuildFailedError, match=r"end without compiling anything \(exit status 9\): no licence"):
        precompile.build(raw, tmp_path / "out", workers=2, quiet=True)


def test_a_worker_that_could_not_start_is_replaced(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path]
) -> None:
    in_workers(f"{MISBEHAVING_DECODER}\nif is_first():\n    os._exit(9)")
    summary = precompile.build(raw, tmp_path / "out", workers=2, quiet=True)
    assert (summary.compiled, summary.quarantined) == (24, 0)
    assert (tmp_path / "marker").exists()


def test_half_written_shards_of_a_worker_that_died_are_deleted(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], watch: Callable[..., Watch]
) -> None:
    mark(raw / "class2" / "0023.jpg", b"SEGV")
    in_workers(MISBEHAVING_DECODER)
    seen = watch()
    precompile.build(raw, tmp_path / "out", workers=1, quiet=True, order="source")
    assert seen.unfinished == [0]


def test_a_worker_that_is_silent_between_samples_is_replaced(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_workers(f"{MISBEHAVING_DECODER}\nif is_first():\n    hang()")
    monkeypatch.setattr(local, "_SILENT_SECONDS", 3.0)
    summary = precompile.build(raw, tmp_path / "out", workers=1, timeout_seconds=1, quiet=True)
    assert (summary.compiled, summary.quarantined) == (24, 0)
    assert (tmp_path / "marker").exists()
