"""SIGKILL and SIGTERM at random moments: of the build, of a worker, of all its processes; and again and again."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import poisoned_files
import pytest
from builds import REPOSITORY, finish, snapshot, start_cli
from outputs import read
from scenarios import PICTURES, Scenario, Scenarios
from servers import Build, BuildServer

DECODE_SECONDS = 0.01
"""So that many moments fall into the work and not into the start."""
STOP_SECONDS = 20.0
"""Far more than a build takes to end in order."""
KILL, TERM = signal.SIGKILL, signal.SIGTERM
EACH = [(number, whom) for number in (KILL, TERM) for whom in ("build", "worker", "group")]


@dataclass(frozen=True)
class Strike:
    """One signal at one moment of a build, and what must follow."""

    server: BuildServer
    scenario: Scenario
    home: Path
    number: signal.Signals
    whom: str

    @property
    def out(self) -> Path:
        return self.home / "out"

    def at(self, seconds: float) -> None:
        self.scenario.lay_out(self.out)
        before = snapshot(self.out)
        build = self.start()
        time.sleep(seconds)  # the random moment itself
        receipts = self._receipts()
        self._send(build)
        found = build.finish(STOP_SECONDS)
        self.server.wait_for_silence()
        assert "Traceback" not in found.err, found.err
        self.scenario.check_left(self.out)
        if self.whom == "worker":
            assert found.code == 0, found.err
        elif self.number == KILL:
            assert found.code in (0, -KILL), found.err
        elif found.code == -TERM:
            assert snapshot(self.out) == before, "it had begun, and did not stop in order"
        else:
            assert found.code in (0, 75), found.err
            assert self._receipts() >= receipts or read(self.out) == self.scenario.new
        again = self.server.run(*self.scenario.command_again(self.out))
        assert again.code == 0, again.err
        self.scenario.check_done(self.out)

    def start(self) -> Build:
        environment = poisoned_files.environment(self.home / "poison", decode_seconds=DECODE_SECONDS)
        return self.server.start(*self.scenario.command(self.out, workers=2), environment=environment)

    def _send(self, build: Build) -> None:
        if self.whom == "group":
            os.killpg(build.pid, self.number)
        elif self.whom == "build":
            os.kill(build.pid, self.number)
        elif workers := build.workers():
            os.kill(workers[-1], self.number)

    def _receipts(self) -> int:
        return len(list((self.out / "build" / "receipts").glob("[0-9]*.npz")))


def moments(strike: Strike, count: int) -> list[float]:
    """Random times, in seconds, within the duration of an undisturbed build."""
    rng = random.Random(f"{strike.number} {strike.whom} {strike.scenario.name}")
    duration = strike.scenario.seconds + PICTURES * DECODE_SECONDS / 2
    return [duration * rng.random() for _ in range(count)]


@pytest.mark.parametrize(("number", "whom"), EACH)
def test_a_signal_at_a_random_moment(
    server: BuildServer, scenarios: Scenarios, tmp_path: Path, number: signal.Signals, whom: str
) -> None:
    names = ("first", "flat") if number == TERM else ("incremental", "lmdb")
    strike = Strike(server, scenarios.get(*names), tmp_path, number, whom)
    for seconds in moments(strike, 1):
        strike.at(seconds)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["first", "incremental"])
@pytest.mark.parametrize(("number", "whom"), EACH)
def test_signals_at_many_random_moments(
    server: BuildServer, scenarios: Scenarios, tmp_path: Path, name: str, number: signal.Signals, whom: str
) -> None:
    strike = Strike(server, scenarios.get(name, "flat" if name == "first" else "lmdb"), tmp_path, number, whom)
    for seconds in moments(strike, 50):
        strike.at(seconds)


SIGTERM_AT_THE_END = """
import atexit, os, signal

class Last:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):
        kill(pid, number)

last = Last()
atexit.register(last.__del__)
"""
"""Once before Python takes its signal handlers away, and once after that."""


def test_sigterm_after_the_last_word_changes_nothing(scenarios: Scenarios, tmp_path: Path) -> None:
    """The interpreter takes its time to end. A build that has committed and said so is no failure."""
    scenario, site = scenarios.get("smaller", "flat"), tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SIGTERM_AT_THE_END)
    command, path = scenario.command(scenario.lay_out(tmp_path / "out")), os.pathsep.join((str(site), str(REPOSITORY)))
    found = finish(start_cli(*command, environment={"PYTHONPATH": path}))
    assert (found.code, found.err, found.json["generation"]) == (0, "", 2)
    scenario.check_done(tmp_path / "out")


def kill_again_and_again(server: BuildServer, scenario: Scenario, out: Path, seed: int) -> None:
    scenario.lay_out(out)
    rng = random.Random(seed)
    for _ in range(5):
        build = server.start(*scenario.command(out, workers=2))
        time.sleep(rng.uniform(0.1, 0.6))  # the random moment itself
        os.killpg(build.pid, KILL)
        build.finish()
        server.wait_for_silence()
        scenario.check_left(out)
    assert server.run(*scenario.command(out)).code == 0
    scenario.check_done(out)


def test_a_build_that_is_killed_five_times(server: BuildServer, scenarios: Scenarios, tmp_path: Path) -> None:
    kill_again_and_again(server, scenarios.get("first", "flat"), tmp_path / "out", 0)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["first", "incremental", "rebuild", "recipe"])
def test_many_builds_that_are_killed_five_times(
    server: BuildServer, scenarios: Scenarios, tmp_path: Path, name: str
) -> None:
    for seed in range(20):
        kill_again_and_again(server, scenarios.get(name, ("lmdb", "flat")[seed % 2]), tmp_path / "out", seed)
