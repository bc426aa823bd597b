"""Builds to disturb: what their output was before, and what comes of them when nothing happens."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from builds import save_image
from fault import Fault
from outputs import Finished, Reading, check_whole, read
from servers import BuildServer

from precompile.format.stored import Stored

PICTURES = 24
RECIPE = ("--shard-size", 4800, "--max-failures", 3, "--quiet", "--json")
"""Seven shards or so of four pictures of 20 x 20."""


@dataclass(frozen=True)
class Scenario:
    """One command over one output."""

    name: str
    raw: Path
    arguments: tuple[object, ...]
    """Of `build`, behind SOURCE and OUT."""
    before: Path | None
    """The output as it was; None: there was none."""
    allowed: tuple[Reading | None, ...]
    """What readers may see after a disturbance; None: that there is no dataset."""
    new: Reading | None = None
    finished: Finished | None = None
    again: tuple[object, ...] | None = None
    """What is run after the disturbance, if it is another command."""
    calls: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By role, what an undisturbed build with one worker calls; see Fault."""
    seconds: float = 0.0
    """How long that took."""

    def lay_out(self, out: Path) -> Path:
        """Put the state before at `out`."""
        shutil.rmtree(out, ignore_errors=True)
        if self.before is not None:
            shutil.copytree(self.before, out, symlinks=True)
        return out

    def command(self, out: Path, *, workers: int = 1) -> tuple[object, ...]:
        return ("build", self.raw, out, "--workers", workers, *self.arguments)

    def command_again(self, out: Path) -> tuple[object, ...]:
        return ("build", self.raw, out, "--workers", 1, *(self.arguments if self.again is None else self.again))

    def check_left(self, out: Path) -> None:
        """After a disturbance: no dataset if there was none, or a whole one, the old or the new."""
        found = read(out)
        assert found in self.allowed
        if found is not None:
            check_whole(out)

    def check_done(self, out: Path) -> None:
        assert self.finished is not None
        self.finished.check(out)
        assert read(out) == self.new
        check_whole(out)


class Scenarios:
    """Makes scenarios on demand, each once, below `home`."""

    def __init__(self, server: BuildServer, home: Path) -> None:
        self._server, self._home = server, home
        self._made: dict[tuple[str, str], Scenario] = {}

    def get(self, name: str, store: str) -> Scenario:
        if (name, store) not in self._made:
            home = self._home / f"{name}-{store}"
            scenario: Scenario = getattr(self, f"_{name}")(home, ("--store", store, *RECIPE))
            self._made[name, store] = self._undisturbed(scenario, home)
        return self._made[name, store]

    def _undisturbed(self, scenario: Scenario, home: Path) -> Scenario:
        out = scenario.lay_out(home / "undisturbed")
        counting, began = Fault(str(home), str(out), role="all"), time.monotonic()
        self._run(scenario.command(out), counting)
        calls = {role: counting.calls(role) for role in ("build", "worker")}
        scenario = replace(scenario, calls=calls, seconds=time.monotonic() - began)
        readings = [read(out)]
        if scenario.again is not None:
            self._run(scenario.command_again(scenario.lay_out(out)))
            readings.append(read(out))
        allowed = (*scenario.allowed, *readings)
        return replace(scenario, allowed=allowed, new=readings[-1], finished=Finished.of(out))

    def _run(self, command: tuple[object, ...], fault: Fault | None = None) -> None:
        done = self._server.run(*command, environment=fault.environment if fault else {})
        assert done.code == 0, done.err

    def _first(self, home: Path, base: tuple[object, ...]) -> Scenario:
        return Scenario(home.name, make_pictures(home / "raw"), base, None, (None,))

    def _over(self, home: Path, base: tuple[object, ...], change: Callable[[Path, Path], None],
              *options: object) -> Scenario:  # fmt: skip
        raw, before = make_pictures(home / "raw"), home / "before"
        self._run(("build", raw, before, *base))
        change(raw, before)
        return Scenario(home.name, raw, (*base, "--keep", 1, *options), before, (read(before),))

    def _smaller(self, home: Path, base: tuple[object, ...]) -> Scenario:
        """Nothing to compile: only a commit, and the removal of the old generation."""
        return self._over(home, base, remove_pictures)

    def _incremental(self, home: Path, base: tuple[object, ...]) -> Scenario:
        return self._over(home, base, change_pictures)

    def _rebuild(self, home: Path, base: tuple[object, ...]) -> Scenario:
        """The same shards come out, and take the place of those that are there."""
        return self._over(home, base, lambda raw, _: None, "--rebuild")

    def _recipe(self, home: Path, base: tuple[object, ...]) -> Scenario:
        return self._over(home, base, lambda raw, _: None, "--size", 16)

    def _switched(self, home: Path, base: tuple[object, ...]) -> Scenario:
        """Another recipe over a build that was interrupted; then that build's command again."""
        scenario = self._interrupted(home, base)
        return replace(scenario, arguments=(*scenario.arguments, "--size", 16), again=scenario.arguments)

    def _moved_on(self, home: Path, base: tuple[object, ...]) -> Scenario:
        """The source has changed since a build of it was interrupted; its finished shards are used all the same."""
        scenario = self._interrupted(home, base)
        remove_pictures(scenario.raw, home)
        save_image(scenario.raw / "c2" / "new.png", 100, side=20)
        return scenario

    def _interrupted(self, home: Path, base: tuple[object, ...]) -> Scenario:
        """Before: a first build that was killed when some of its shards were done."""
        scenario = self._first(home, (*base, "--keep", 1))
        counting = Fault(str(home), str(home / "counted"), role="worker")
        self._run(scenario.command(home / "counted"), counting)
        published = [n for n, call in enumerate(counting.calls("worker")) if call.startswith("replace build/receipts")]
        before = home / "before"
        kill = replace(counting, root=str(before), at=published[2], do="kill group")
        assert self._server.run(*scenario.command(before), environment=kill.environment).code == -signal.SIGKILL
        (home / "worker.calls").unlink()
        return replace(scenario, before=before)


def make_pictures(raw: Path) -> Path:
    """Pictures of three classes, and one file that is none."""
    for number in range(PICTURES):
        save_image(raw / f"c{number % 3}" / f"{number:02d}.png", number, side=20)
    (raw / "c1" / "broken.png").write_bytes(b"not a picture")
    return raw


def remove_pictures(raw: Path, out: Path) -> None:
    for path in sorted(raw.glob("c0/*"))[:2]:
        path.unlink()


def change_pictures(raw: Path, out: Path) -> None:
    """Remove, add, relabel, touch and rewrite some, so that one shard is mostly dead and what is left is copied."""
    stored = Stored(out)
    first_shard = [key for key, place in zip(stored.index.keys, stored.index.record.tolist()) if place[0] == 0]
    for key in first_shard[:-1]:
        (raw / key).unlink()
    for number in range(4):
        save_image(raw / f"c{number % 3}" / f"new{number}.png", 100 + number, side=20)
    left = [path for path in sorted(raw.rglob("[0-9]*.png")) if str(path.relative_to(raw)) not in first_shard]
    left[0].rename(raw / "c2" / "relabelled.png")
    os.utime(left[1])
    save_image(left[2], 200, side=20)
