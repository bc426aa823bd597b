"""Who was in work when a whole build was killed, and what the next builds make of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from builds import cli, quarantine, save_image
from inline_executor import InlineExecutor, inline  # noqa: F401  (a fixture)

import precompile
from precompile.pipeline.compile_shard import Task
from precompile.pipeline.executors.heartbeat import HeartbeatFile
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.suspects import Suspects


class Killed(BaseException):
    """Stands for SIGKILL: heartbeats and suspects stay as they are."""


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for number in range(12):
        save_image(tmp_path / "raw" / f"c{number % 2}" / f"{number:02d}.png", number)
    return tmp_path / "raw"


@pytest.fixture
def dirs(tmp_path: Path) -> BuildDirs:
    return BuildDirs(tmp_path / "out")


KEYS = {"shard_size": 800, "order": "source", "quiet": True, "workers": 1}


@pytest.fixture
def killer(dirs: BuildDirs, monkeypatch: pytest.MonkeyPatch, inline: None) -> dict[str, object]:  # noqa: F811
    """Kills a build that works on the sample numbers in `on`, and notes in `ran` which tasks were run alone."""
    state: dict[str, object] = {"on": set(), "ran": []}

    def run(self, tasks: list[Task], *, alone: frozenset[int] = frozenset()):
        for task in sorted(tasks, key=lambda task: task.number in alone):
            if task.number in alone:
                self._on_alone(task)
            state["ran"].append((task.number, task.number in alone))  # type: ignore[attr-defined]
            for sample in range(task.start, task.stop):
                if sample in state["on"] and sample not in task.known:  # type: ignore[operator]
                    HeartbeatFile(dirs.workers / "0000.heartbeat", create=True).begin(sample)
                    raise Killed
            yield self._shards.finish(self._shards.compile(task))

    monkeypatch.setattr(InlineExecutor, "run", run)
    return state


def test_one_that_kills_again_alone_is_left_out(raw: Path, dirs: BuildDirs, killer: dict[str, object]) -> None:
    killer["on"] = {5}
    for _ in range(2):
        with pytest.raises(Killed):
            precompile.build(raw, dirs.root, **KEYS)
    assert killer["ran"][-1][1] is True  # type: ignore[index]
    summary = precompile.build(raw, dirs.root, **KEYS)
    assert (summary.compiled, summary.quarantined, summary.exit_code) == (11, 1, 3)
    row = quarantine(dirs.root)["c0/10.png"]
    assert (row["error"], row["attempts"], row["stage"]) == ("BuildKilled", 2, "read")
    assert row["message"].startswith("the whole build was killed 2 times while this input was in work, the last time")
    assert list(dirs.work.iterdir()) == []


def test_the_innocent_are_compiled_last_and_alone(raw: Path, dirs: BuildDirs, killer: dict[str, object]) -> None:
    undisturbed = precompile.build(raw, dirs.root.with_name("undisturbed"), **KEYS)
    killer["on"] = {0}
    with pytest.raises(Killed):
        precompile.build(raw, dirs.root, **KEYS)
    killer["on"], killer["ran"] = set(), []
    summary = precompile.build(raw, dirs.root, **KEYS)
    assert (summary.quarantined, summary.fingerprint) == (0, undisturbed.fingerprint)
    ran = killer["ran"]
    assert [alone for _, alone in ran] == [False] * (len(ran) - 1) + [True]  # type: ignore[arg-type,union-attr]
    assert ran[-1] == (0, True)  # type: ignore[index]
    assert sorted(path.name for path in dirs.shards.iterdir()) == sorted(
        path.name for path in (dirs.root.with_name("undisturbed") / "shards").iterdir()
    )


def test_a_file_that_was_replaced_is_no_suspect(raw: Path, dirs: BuildDirs, killer: dict[str, object]) -> None:
    killer["on"] = {5}
    for _ in range(2):
        with pytest.raises(Killed):
            precompile.build(raw, dirs.root, **KEYS)
    save_image(raw / "c0" / "10.png", 99)
    killer["on"] = set()
    assert precompile.build(raw, dirs.root, **KEYS).quarantined == 0


def test_another_sample_in_work_while_alone_does_not_convict_the_first(
    raw: Path, dirs: BuildDirs, killer: dict[str, object]
) -> None:
    killer["on"] = {0}
    with pytest.raises(Killed):
        precompile.build(raw, dirs.root, **KEYS)
    killer["on"] = {11}
    with pytest.raises(Killed):
        precompile.build(raw, dirs.root, **KEYS)
    rows = json.loads((dirs.work / "suspects.json").read_text())
    killer["on"] = set()
    assert {row["key"]: row["is_guilty"] for row in rows} == {"c0/00.png": False}
    assert precompile.build(raw, dirs.root, **KEYS).quarantined == 0


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"key": "a"}]', '[{"key": "a", "stat": 3, "kills": 1}]', "null"])
def test_a_damaged_record_of_suspects_is_forgotten(raw: Path, dirs: BuildDirs, inline: None, text: str) -> None:  # noqa: F811
    dirs.work.mkdir(parents=True)
    dirs.lock.touch()
    (dirs.work / "suspects.json").write_text(text)
    (dirs.workers).mkdir()
    (dirs.workers / "0000.heartbeat").write_bytes(b"short")
    assert len(Suspects.open(dirs)) == 0
    assert precompile.build(raw, dirs.root, **KEYS).compiled == 12


@pytest.mark.parametrize("name", ["suspects.json", "owner.json", "plan/plan.json", "workers/0000.heartbeat"])
def test_a_pipe_in_the_place_of_a_file_hangs_nothing(raw: Path, dirs: BuildDirs, inline: None, name: str) -> None:  # noqa: F811
    (dirs.work / name).parent.mkdir(parents=True)
    dirs.lock.touch()
    os.mkfifo(dirs.work / name)
    assert precompile.build(raw, dirs.root, **KEYS).compiled == 12


def test_the_deadline_keeps_work(raw: Path, dirs: BuildDirs) -> None:
    found = cli("build", raw, dirs.root, "--max-runtime", 1e-9, "--workers", 1, "--quiet")
    assert (found.code, found.error.split(";")[0]) == (75, "error: stopped by max_runtime")
    assert cli("build", raw, dirs.root, "--max-runtime", 600, "--workers", 1, "--quiet").code == 0
