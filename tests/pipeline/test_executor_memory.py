"""Samples that need more memory than there is, whether the kernel notices or we do, cost themselves alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from builds import content, quarantine
from poison import MISBEHAVING_DECODER, TRACE, mark
from watched import Watch

import precompile
from precompile.errors import BuildFailedError
from precompile.pipeline.executors import limits


@pytest.fixture(autouse=True)
def _no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MIN_WORKER_BYTES", 1)


def build(raw: Path, out: Path, workers: int = 2) -> precompile.Summary:
    """Several small shards, in source order, with neighbours of a file in its shard."""
    return precompile.build(raw, out, workers=workers, shard_size=4000, order="source", quiet=True)


def test_a_decoder_that_grows_without_bound_costs_its_file(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], watch: Callable[..., Watch]
) -> None:
    bad = raw / "class1" / "0010.jpg"
    mark(bad, b"GROW")
    in_workers(MISBEHAVING_DECODER)
    seen = watch(memory_bytes=300_000_000)
    summary = build(raw, tmp_path / "out")
    assert list(quarantine(tmp_path / "out")) == ["class1/0010.jpg"]
    assert (summary.planned, summary.compiled, summary.quarantined) == (24, 23, 1)
    row = quarantine(tmp_path / "out")["class1/0010.jpg"]
    assert (row["stage"], row["error"], row["attempts"]) == ("decode", "MemoryError", 2)
    assert row["message"] == "needs more than 300 MB of memory (all that the workers may use)"
    assert row["xxh3"] == xxhash.xxh3_64_hexdigest(bad.read_bytes())
    assert seen.alone == [seen.finished[-1]] * 2
    assert seen.others == 0


def test_a_file_that_needs_more_than_its_share_is_compiled_alone(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], watch: Callable[..., Watch]
) -> None:
    mark(raw / "class1" / "0010.jpg", b"LARG")
    in_workers(MISBEHAVING_DECODER)
    seen = watch(memory_bytes=300_000_000)
    summary = build(raw, tmp_path / "out")
    assert (summary.compiled, summary.quarantined) == (24, 0)
    assert seen.alone == [seen.finished[-1]]


def test_workers_that_need_more_than_their_share_for_nothing_fail_the_build(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], watch: Callable[..., Watch]
) -> None:
    in_workers(f"{MISBEHAVING_DECODER}\nheld = take(200 << 20)\nhang()")
    watch(memory_bytes=200_000_000)
    with pytest.raises(BuildFailedError, match=r"without compiling anything \(used more than 100 MB of memory\)"):
        build(raw, tmp_path / "out")


def test_a_worker_that_was_killed_for_another_costs_nothing(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], watch: Callable[..., Watch]
) -> None:
    mark(raw / "class1" / "0010.jpg", b"ONCE")
    in_workers(MISBEHAVING_DECODER)
    seen = watch()
    assert build(raw, tmp_path / "killed").compiled == 24
    assert seen.alone == [seen.finished[-1]]
    assert build(raw, tmp_path / "undisturbed").compiled == 24
    assert len(seen.alone) == 1
    assert content(tmp_path / "killed") == content(tmp_path / "undisturbed")


def test_a_file_whose_process_is_always_killed_is_left_out(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], watch: Callable[..., Watch]
) -> None:
    first, second = raw / "class1" / "0007.jpg", raw / "class1" / "0010.jpg"
    for bad in (first, second):
        mark(bad, b"KILL")
    in_workers(MISBEHAVING_DECODER)
    seen = watch()
    summary = build(raw, tmp_path / "out")
    assert (summary.compiled, summary.quarantined) == (22, 2)
    assert len(set(seen.alone)) == 1, "they are to be in one shard"
    rows = quarantine(tmp_path / "out")
    assert [rows[f"class1/{bad.name}"]["attempts"] for bad in (first, second)] == [2, 1]
    reason = "(SIGKILL); most likely it needs more memory than there is"
    assert rows["class1/0007.jpg"]["message"] == f"its process was killed twice, the second time alone {reason}"
    assert rows["class1/0010.jpg"]["message"] == f"its process was killed while it ran alone {reason}"
    for bad in (first, second):
        row = rows[f"class1/{bad.name}"]
        assert (row["stage"], row["error"]) == ("decode", "WorkerDied")
        assert row["xxh3"] == xxhash.xxh3_64_hexdigest(bad.read_bytes())


@pytest.mark.parametrize("workers", [1, 3])
def test_tasks_that_are_to_run_alone_do_so_after_all_others(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], watch: Callable[..., Watch],
    monkeypatch: pytest.MonkeyPatch, workers: int,
) -> None:  # fmt: skip
    assert build(raw, tmp_path / "undisturbed").compiled == 24
    in_workers(TRACE)
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    seen = watch(alone={1, 4})
    assert build(raw, tmp_path / "out", workers).compiled == 24
    assert seen.alone == [1, 4] == seen.finished[-2:]
    assert seen.others == 0
    decoded = [tuple(map(int, line.split())) for line in (tmp_path / "trace").read_text().splitlines()]
    assert len(decoded) == 24
    began = [0, *seen.alone_ns, 2**63]
    processes = [{pid for at, pid in decoded if begin <= at < end} for begin, end in itertools.pairwise(began)]
    assert [len(pids) for pids in processes[1:]] == [1, 1]
    assert len(set.union(*processes)) == sum(map(len, processes)), "each lone task has a process of its own"
    assert content(tmp_path / "out") == content(tmp_path / "undisturbed")


def test_a_crash_is_tried_twice_when_it_is_alone_too(
    raw: Path, tmp_path: Path, in_workers: Callable[[str], Path], watch: Callable[..., Watch]
) -> None:
    mark(raw / "class1" / "0010.jpg", b"SEGV")
    in_workers(MISBEHAVING_DECODER)
    seen = watch(alone={3})
    assert build(raw, tmp_path / "out").compiled == 23
    row = quarantine(tmp_path / "out")["class1/0010.jpg"]
    assert (row["message"], row["attempts"]) == ("the decoder ended its process (SIGSEGV)", 2)
    assert seen.alone == [3, 3, 3]
    assert seen.others == 0
