"""All processes of a build are killed at once, as when a container runs out of memory, while one picture is in work."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import poisoned_files
import pytest
from builds import Outcome, quarantine
from outputs import Finished, check_whole, read
from scenarios import PICTURES, RECIPE, make_pictures
from servers import BuildServer

OPTIONS = (*RECIPE, "--workers", 2)
PICKED = pytest.mark.parametrize(
    "number", [pytest.param(0, id="in the sample", marks=pytest.mark.long), pytest.param(4, id="in its task")]
)
"""Picture 0 is among those by which a build first learns how large records are, picture 4 is not."""


def run(server: BuildServer, home: Path) -> Outcome:
    environment = poisoned_files.environment(home / "poison")
    found = server.run("build", home / "raw", home / "out", *OPTIONS, environment=environment)
    server.wait_for_silence()
    return found


def poisoned_key(home: Path, number: int, word: str) -> str:
    picture = sorted(make_pictures(home / "raw").rglob("*.png"))[number]
    return str(poisoned_files.poisoned(picture, word).relative_to(home / "raw"))


@PICKED
def test_a_picture_that_ends_the_build_twice_is_left_out(server: BuildServer, tmp_path: Path, number: int) -> None:
    key, out = poisoned_key(tmp_path, number, "KILL"), tmp_path / "out"
    for _ in range(2):
        assert run(server, tmp_path).code == -signal.SIGKILL
        assert read(out) is None
    plan = out / "build" / "plan" / "plan.json"
    if number == 4:  # its task came last, but for that on which the other worker was when the first build ended
        tasks = len(json.loads(plan.read_text())["bounds"]) - 1
        done_tasks = len(list((out / "build" / "receipts").glob("[0-9]*.npz")))
        assert done_tasks in (tasks - 1, tasks - 2)
    done = run(server, tmp_path)
    assert done.code == 0, done.err
    assert (done.json["compiled"], done.json["quarantined"]) == (PICTURES - 1, 2)
    rows = quarantine(out)
    assert set(rows) == {key, "c1/broken.png"}
    assert "killed 2 times" in rows[key]["message"]
    check_whole(out)


@PICKED
def test_a_picture_that_was_in_work_by_chance_is_compiled(server: BuildServer, tmp_path: Path, number: int) -> None:
    poisoned_key(tmp_path, number, "ONCE")
    undisturbed = tmp_path / "undisturbed"
    assert server.run("build", tmp_path / "raw", undisturbed, *OPTIONS).code == 0
    assert run(server, tmp_path).code == -signal.SIGKILL
    assert run(server, tmp_path).code == 0
    Finished.of(undisturbed).check(tmp_path / "out")
    assert set(quarantine(tmp_path / "out")) == {"c1/broken.png"}
