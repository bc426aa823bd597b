"""What workers may use."""

from __future__ import annotations

import time

import pytest

from precompile import machine
from precompile.errors import StoppedError
from precompile.pipeline.executors.limits import MIN_WORKER_BYTES, Limits


def test_memory_is_shared_among_workers() -> None:
    limits = Limits(60, memory_bytes=64 << 30)
    assert limits.measured() == limits
    assert [limits.worker_bytes(workers) for workers in (1, 4, 64)] == [64 << 30, 16 << 30, 1 << 30]


def test_a_worker_always_gets_a_gibibyte() -> None:
    assert Limits(60, memory_bytes=1).worker_bytes(100) == MIN_WORKER_BYTES == 1 << 30


def test_memory_that_is_not_given_is_most_of_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: machine.MemoryLimits(500 << 30, 200 << 30, 100 << 30, 100 << 30))
    assert Limits(60, deadline=5.0).measured() == Limits(60, 90 << 30, 5.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"timeout_seconds": 0}, "timeout_seconds must be more than 0, got timeout_seconds=0"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds must be more than 0, got timeout_seconds=nan"),
        ({"timeout_seconds": 1, "memory_bytes": 0}, "memory_bytes must be at least 1, got memory_bytes=0"),
    ],
)
def test_limits_that_cannot_be_met_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Limits(**values)  # type: ignore[arg-type]


def test_a_deadline_that_has_passed_stops() -> None:
    Limits(60).check_deadline()
    Limits(60, deadline=time.monotonic() + 1000).check_deadline()
    with pytest.raises(StoppedError, match="stopped by max_runtime; finished shards are kept"):
        Limits(60, deadline=time.monotonic()).check_deadline()
