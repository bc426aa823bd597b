"""A scenario's build is disturbed at one of its calls, looked at, run again, and compared with an undisturbed one."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from builds import Outcome
from fault import Fault
from scenarios import Scenario
from servers import Build, BuildServer


class Kills:
    """SIGKILL at a call; `points` are numbers of calls, `out` is where the output lies. Raises AssertionError."""

    def __init__(self, server: BuildServer, scenario: Scenario, home: Path, *, out: Path | None = None,
                 **fault: object) -> None:  # fmt: skip
        self.server, self.scenario = server, scenario
        self.out, self._note = out or home / "out", home / "note"
        self.fault = Fault(str(self._note), str(self.out), **fault)
        self.calls = scenario.calls[self.fault.role]
        assert len(self.calls) > 5, self.calls

    def check(self, points: Iterable[int]) -> None:
        """Disturb at each point, look, run again, compare. All points are tried before a failure is raised."""
        failures = []
        for point in points:
            try:
                self.lay_out()
                self.disturb(replace(self.fault, at=point))
                self.scenario.check_left(self.out)
                self.check_exit(self.server.run(*self.scenario.command_again(self.out)), 0)
                self.scenario.check_done(self.out)
            except AssertionError as error:
                failures.append(f"{point} {self.calls[point]}: {str(error)[:2000]}")
        assert not failures, "\n".join(failures)

    def all(self) -> range:
        return range(len(self.calls))

    def of_the_commit(self) -> list[int]:
        """Of each run of calls of one kind in one folder the first and the last, from the first call of the commit."""
        kinds = [(call.split()[0], str(Path(call.split()[1]).parent)) for call in self.calls]
        start, last = self.calls.index("fsync shards"), len(kinds) - 1
        return [
            point for point in range(start, len(kinds))
            if point == last or kinds[point] != kinds[point + 1] or kinds[point] != kinds[point - 1]
        ]  # fmt: skip

    def spread(self, count: int) -> list[int]:
        """Evenly over the whole build."""
        return [number * (len(self.calls) - 1) // (count - 1) for number in range(count)]

    def first(self, call: str, *, skip: int = 0) -> int:
        """The number of a call that begins so; `skip` leaves out that many."""
        return [point for point in self.all() if self.calls[point].startswith(call)][skip]

    def disturb(self, fault: Fault) -> None:
        found = self.start(fault.environment).finish()
        assert fault.fired.exists(), "the call did not come"
        ends = fault.role == "build" or fault.do == "kill group"
        self.check_exit(found, -signal.SIGKILL if ends else 0)

    def start(self, environment: Mapping[str, str]) -> Build:
        return self.server.start(*self.scenario.command(self.out), environment=environment)

    def check_exit(self, found: Outcome, code: int) -> None:
        assert found.code == code, found.err
        self.server.wait_for_silence()

    def lay_out(self) -> None:
        shutil.rmtree(self._note, ignore_errors=True)
        self._note.mkdir(parents=True)
        self.scenario.lay_out(self.out)
