"""SIGKILL right before, and right after, every call by which a build changes its output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from disturbances import Kills
from fault import Fault
from outputs import reading_of
from scenarios import Scenarios
from servers import BuildServer

from precompile import CompiledDataset

BOTH = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
STORES = {False: "lmdb", True: "flat"}
"""The parent's calls do not depend on the store, so each variant takes one."""
MakeKills = Callable[..., Kills]


class Stops(Kills):
    """SIGTERM at a call: the build ends in order."""

    def disturb(self, fault: Fault) -> None:
        found = self.start(replace(fault, do="terminate").environment).finish()
        assert found.error.startswith("error: stopped; finished shards are kept")
        self.check_exit(found, 75)


@pytest.fixture
def kills(server: BuildServer, scenarios: Scenarios, tmp_path: Path) -> MakeKills:
    """kills(scenario, store, **fault)"""

    def make(name: str, store: str, **fault: object) -> Kills:
        return Kills(server, scenarios.get(name, store), tmp_path, **fault)

    return make


@BOTH
def test_a_kill_in_the_commit_leaves_the_old_or_the_new(kills: MakeKills, after: bool) -> None:
    found = kills("smaller", STORES[after], after=after)  # which has little else than a commit
    found.check(found.of_the_commit() if after else found.all())


@pytest.mark.parametrize(("name", "after"), [("first", True), ("incremental", False)])
def test_a_kill_anywhere_leaves_the_old_or_the_new(kills: MakeKills, name: str, after: bool) -> None:
    found = kills(name, STORES[after], after=after)
    found.check(found.spread(4))


def test_a_kill_in_the_change_to_another_recipe_does_not_spoil_the_first(kills: MakeKills) -> None:
    """The first build's work may be lost, but its command must not be misled by what is left of it."""
    found = kills("switched", "flat")
    removals = [point for point in found.all() if found.calls[point].startswith("unlink build/plan/")]
    found.check(removals[1:3])


def test_a_kill_while_finished_shards_are_carried_over_does_not_lose_them(kills: MakeKills) -> None:
    found = kills("moved_on", "flat")
    kept = [point for point in found.all() if "build/kept/" in found.calls[point]]
    found.check([kept[0], kept[-1] + 1])


@BOTH
def test_a_worker_killed_while_it_publishes_is_replaced(kills: MakeKills, after: bool) -> None:
    found = kills("first", "flat", role="worker", after=after)
    found.check([found.first("replace build/shards/", skip=1)])


@BOTH
def test_sigterm_in_the_commit_is_exit_code_75(
    server: BuildServer, scenarios: Scenarios, tmp_path: Path, after: bool
) -> None:
    stops = Stops(server, scenarios.get("smaller", STORES[after]), tmp_path, after=after)
    stops.check(stops.of_the_commit()[::3])


def test_a_reader_keeps_its_generation_through_kills(kills: MakeKills) -> None:
    found = kills("smaller", "lmdb")
    scenario, out, server = found.scenario, found.out, found.server
    found.lay_out()
    reader = CompiledDataset(out)
    seen = reading_of(reader)
    for point in found.of_the_commit()[::3]:
        found.fault.fired.unlink(missing_ok=True)
        server.run(*scenario.command(out), environment=replace(found.fault, at=point).environment)
        assert reading_of(reader) == seen
    assert server.run(*scenario.command(out)).code == 0
    assert reading_of(reader) == reading_of(CompiledDataset(out, generation=1)) == seen
    del reader
    assert server.run(*scenario.command(out)).code == 0
    scenario.check_done(out)


@pytest.mark.long
@pytest.mark.timeout(7200)
@BOTH
@pytest.mark.parametrize("name", ["first", "smaller", "incremental", "rebuild", "recipe", "switched", "moved_on"])
def test_a_kill_at_every_call_of_the_build(kills: MakeKills, name: str, after: bool) -> None:
    found = kills(name, STORES[after], after=after)
    found.check(found.all())


@pytest.mark.long
@pytest.mark.timeout(7200)
@BOTH
@pytest.mark.parametrize("name", ["first", "incremental"])
def test_sigterm_at_every_call_of_the_build(
    server: BuildServer, scenarios: Scenarios, tmp_path: Path, name: str, after: bool
) -> None:
    stops = Stops(server, scenarios.get(name, STORES[after]), tmp_path, after=after)
    stops.check(stops.all())


@pytest.mark.long
@pytest.mark.timeout(7200)
@BOTH
@pytest.mark.parametrize("do", ["kill", "kill group"])
@pytest.mark.parametrize("store", ["lmdb", "flat"])
@pytest.mark.parametrize("name", ["first", "incremental"])
def test_a_kill_at_every_call_of_a_worker(kills: MakeKills, name: str, store: str, do: str, after: bool) -> None:
    found = kills(name, store, role="worker", do=do, after=after)
    found.check(found.all())
