"""Pictures that crash, hang or exhaust their decoder, all in one build of plain processes."""

from __future__ import annotations

import os
from pathlib import Path

import poisoned_files
from builds import REPOSITORY, Outcome, assert_matches, finish, quarantine, start_cli
from outputs import check_whole
from scenarios import PICTURES, RECIPE, make_pictures
from servers import SITE

REASONS = {
    "SEGV": r"WorkerDied: the decoder ended its process \(SIGSEGV\)",
    "ABRT": r"WorkerDied: the decoder ended its process \(SIGABRT\)",
    "EXIT": r"WorkerDied: the decoder ended its process \(exit status 3\)",
    "HANG": r"TimeoutError: not finished after 1 s \(--timeout\)",
    "RAIS": r"ContentError: .*no such pixels",
    "MEMO": r"MemoryError: ",
}
OPTIONS = (*RECIPE, "--max-failures", 0, "--workers", 2, "--timeout", 1)


def run(raw: Path, out: Path, home: Path) -> Outcome:
    path = os.pathsep.join(map(str, (SITE, REPOSITORY)))
    environment = {**poisoned_files.environment(home), "PYTHONPATH": path}
    return finish(start_cli("build", raw, out, *OPTIONS, environment=environment))


def test_poisoned_pictures_cost_only_themselves(tmp_path: Path) -> None:
    raw, out, home = make_pictures(tmp_path / "raw"), tmp_path / "out", tmp_path / "poison"
    pictures = sorted(raw.rglob("[0-9]*.png"))[::4]
    words = {
        str(poisoned_files.poisoned(picture, word).relative_to(raw)): word for picture, word in zip(pictures, REASONS)
    }
    assert len(words) == len(REASONS)
    found = run(raw, out, home)
    assert found.code == 3, found.err
    bad = {**words, "c1/broken.png": "RAIS"}
    counts = {name: found.json[name] for name in ("planned", "compiled", "reused", "quarantined")}
    assert counts == {"planned": PICTURES + 1, "compiled": PICTURES + 1 - len(bad), "reused": 0,
                      "quarantined": len(bad)}  # fmt: skip
    rows = quarantine(out)
    assert set(rows) == set(bad)
    for key, word in words.items():
        assert rows[key]["stage"] == "decode"
        assert_matches("^" + REASONS[word], f"{rows[key]['error']}: {rows[key]['message']}")
    check_whole(out)
    decoded = poisoned_files.decoded(home)
    assert decoded >= PICTURES
    again = run(raw, out, home)
    assert (again.code, again.json["quarantined"]) == (0, len(bad)), again.err
    assert poisoned_files.decoded(home) == decoded
