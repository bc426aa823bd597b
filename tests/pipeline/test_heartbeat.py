"""What a worker notes, and what is left of it when everything was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from precompile.pipeline.executors.heartbeat import NO_SAMPLE, HeartbeatFile, Pulse, read_left


@pytest.fixture
def beat(tmp_path: Path) -> HeartbeatFile:
    return HeartbeatFile(tmp_path / "0000.heartbeat", create=True)


def test_a_parent_sees_what_its_worker_notes(tmp_path: Path, beat: HeartbeatFile) -> None:
    seen = HeartbeatFile(tmp_path / "0000.heartbeat", create=False)
    assert (seen.read().sample, seen.read().done, seen.read().xxh3) == (NO_SAMPLE, 0, "")
    beat.begin(7)
    assert (seen.read().sample, seen.read().done, seen.read().xxh3) == (7, 0, "")
    assert 0 <= seen.read().seconds < 60
    beat.loaded(2**64 - 1)
    assert (seen.read().sample, seen.read().xxh3) == (7, "ffffffffffffffff")
    beat.end()
    assert (seen.read().sample, seen.read().done) == (NO_SAMPLE, 1)
    beat.begin(0)
    assert (seen.read().sample, seen.read().done, seen.read().xxh3) == (0, 1, "")


def test_what_is_left_names_the_samples_in_work(tmp_path: Path, beat: HeartbeatFile) -> None:
    other = HeartbeatFile(tmp_path / "0001.heartbeat", create=True)
    HeartbeatFile(tmp_path / "0002.heartbeat", create=True)
    beat.begin(3)
    beat.end()
    beat.begin(0)
    other.begin(5)
    other.loaded(255)
    assert read_left(tmp_path) == [Pulse(0, 0.0, 1, ""), Pulse(5, 0.0, 0, "00000000000000ff")]


@pytest.mark.parametrize(
    "data", [b"", b"short", bytes(24), bytes(31), bytes(33), bytes(64), b"\xff" * 32, b"\xfe" * 32]
)
def test_a_damaged_file_that_is_left_tells_nothing(tmp_path: Path, beat: HeartbeatFile, data: bytes) -> None:
    beat.begin(3)
    (tmp_path / "0001.heartbeat").write_bytes(data)
    (tmp_path / "0002.heartbeat").mkdir()
    (tmp_path / "0003.heartbeat").symlink_to("nowhere")
    (tmp_path / "0004.log").write_bytes(bytes(32))
    assert [pulse.sample for pulse in read_left(tmp_path)] == [3]


def test_a_directory_that_is_not_there_has_nothing_left(tmp_path: Path) -> None:
    assert read_left(tmp_path / "none") == []
