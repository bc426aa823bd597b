"""Several builds of one output: one works, the others say so and end."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from builds import assert_matches
from fault import Fault
from scenarios import Scenario, Scenarios
from servers import BuildServer, until


def test_a_second_build_ends_at_once_and_names_the_first(
    server: BuildServer, scenarios: Scenarios, tmp_path: Path
) -> None:
    scenario, out = scenarios.get("incremental", "lmdb"), tmp_path / "out"
    scenario.lay_out(out)
    fault = Fault(str(tmp_path), str(out), at=20, do="pause")
    first = server.start(*scenario.command(out), environment=fault.environment)
    until(fault.fired.exists, "the first build does not begin")
    for command in (scenario.command(out), ("build", scenario.raw, out, "--size", 8), ("prune", out)):
        found = server.run(*command)
        assert found.code == 75
        owner = rf"{re.escape(str(out))}: another build \(pid {first.pid} on {socket.gethostname()}, since "
        assert_matches(owner, found.error)
    fault.gate.touch()
    assert first.finish().code == 0
    scenario.check_done(out)


def build_at_once(server: BuildServer, scenario: Scenario, out: Path) -> None:
    """Ten builds that begin at the same moment."""
    scenario.lay_out(out)
    started = [server.start(*scenario.command(out, workers=2)) for _ in range(10)]
    found = [build.finish() for build in started]
    server.wait_for_silence()
    for outcome in found:
        assert outcome.code in (0, 75), outcome.err
        if outcome.code == 75:
            assert_matches(r"another build", outcome.error)
    done = [outcome.json for outcome in found if outcome.code == 0]
    assert [summary["compiled"] > 0 for summary in done].count(True) == 1
    assert len({summary["fingerprint"] for summary in done}) == 1
    scenario.check_done(out)


def test_ten_builds_at_once(server: BuildServer, scenarios: Scenarios, tmp_path: Path) -> None:
    build_at_once(server, scenarios.get("first", "flat"), tmp_path / "out")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["first", "incremental"])
def test_ten_builds_at_once_many_times(server: BuildServer, scenarios: Scenarios, tmp_path: Path, name: str) -> None:
    for _ in range(50):
        build_at_once(server, scenarios.get(name, "lmdb"), tmp_path / "out")
