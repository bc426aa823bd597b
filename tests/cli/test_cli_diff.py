"""`precompile diff`: its defaults, what it prints, and how it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builds import assert_matches, build, cli, save_image, unchanged
from inline_executor import inline  # noqa: F401  (a fixture)

pytestmark = pytest.mark.usefixtures("inline")
EMPTY: dict[str, object] = {"added": [], "removed": [], "renamed": [], "changed": [], "relabelled": [],
                            "classes": {"added": [], "removed": [], "renumbered": []}}  # fmt: skip


@pytest.fixture
def three(raw: Path, out: Path) -> Path:
    """Generation 2 has a new image; in 3 it has other pixels and one is gone."""
    assert build(raw, out, "--quiet").code == 0
    save_image(raw / "c0" / "new.png", 50)
    assert build(raw, out, "--quiet", "--keep", 9).code == 0
    save_image(raw / "c0" / "new.png", 51)
    (raw / "c1" / "01.png").unlink()
    assert build(raw, out, "--quiet", "--keep", 9).code == 0
    return out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"from": 2, "to": 3, "removed": ["c1/01.png"], "changed": ["c0/new.png"]}),
        (["--from", 1], {"from": 1, "to": 3, "added": ["c0/new.png"], "removed": ["c1/01.png"]}),
        (["--to", 2], {"from": 1, "to": 2, "added": ["c0/new.png"]}),
        (["--from", 1, "--to", 3], {"from": 1, "to": 3, "added": ["c0/new.png"], "removed": ["c1/01.png"]}),
        (["--from", 3, "--to", 1], {"from": 3, "to": 1, "added": ["c1/01.png"], "removed": ["c0/new.png"]}),
        (["--from", 2, "--to", 2], {"from": 2, "to": 2}),
    ],
)
def test_from_and_to(three: Path, arguments: list[object], expected: dict[str, object]) -> None:
    with unchanged(three):
        done = cli("diff", three, *arguments, "--json")
    assert (done.code, done.json) == (0, {**EMPTY, **expected})


def test_classes_that_moved_are_named(raw: Path, out: Path) -> None:
    build(raw, out, "--quiet")
    save_image(raw / "a" / "new.png", 50)
    (raw / "c0" / "00.png").rename(raw / "c0" / "renamed.png")
    build(raw, out, "--quiet")
    found = cli("diff", out, "--json").json
    assert found["classes"]["added"] == ["a"]
    assert found["classes"]["renumbered"] == sorted(path.name for path in raw.iterdir())[1:]
    assert found["renamed"] == [["c0/00.png", "c0/renamed.png"]]
    text = cli("diff", out).out
    assert "  the classes changed: added 'a', " in text
    assert "  renamed    c0/00.png -> c0/renamed.png\n" in text


def test_text(three: Path) -> None:
    assert cli("diff", three).out.splitlines() == [
        f"{three}: generation 2 to 3: 0 added, 1 removed, 0 renamed, 1 changed, 0 relabelled",
        "  removed    c1/01.png",
        "  changed    c0/new.png",
    ]
    assert cli("diff", three, "--from", 3).out == (
        f"{three}: generation 3 to 3: 0 added, 0 removed, 0 renamed, 0 changed, 0 relabelled\n"
    )


def test_many_keys_are_shown_up_to_a_limit(raw: Path, out: Path) -> None:
    build(raw, out, "--quiet")
    for number in range(30):
        save_image(raw / "c0" / f"new{number:02d}.png", 100 + number)
    build(raw, out, "--quiet")
    lines = cli("diff", out).out.splitlines()
    assert len(lines) == 22
    assert lines[-1] == "  added      … and 10 more (--json lists all)"
    assert len(cli("diff", out, "--json").json["added"]) == 30


@pytest.mark.parametrize("arguments", [["--from", 7], ["--to", 7], ["--from", 0, "--to", 2], ["--from", -1]])
def test_an_unknown_generation_names_the_choices(three: Path, arguments: list[object]) -> None:
    refused = cli("diff", three, *arguments)
    assert refused.code == 1
    assert_matches(r"out: no generation (7|0|-1); there are: 1, 2, 3$", refused.error)


def test_nothing_to_compare_with(raw: Path, out: Path, three: Path) -> None:
    shutil.rmtree(out / "generations" / "000001")
    refused = cli("diff", three, "--to", 2)
    assert (refused.code, refused.error) == (
        1, f"error: {out}: no generation before 2 is kept, only 2, 3; nothing to compare",
    )  # fmt: skip


def test_a_damaged_index_is_named(three: Path) -> None:
    path = three / "generations" / "000002" / "crc32.npy"
    path.write_bytes(b"junk")
    refused = cli("diff", three)
    assert refused.code == 1
    assert_matches(rf"{path}: ", refused.error)


def test_no_dataset(tmp_path: Path) -> None:
    assert_matches("none: no such directory; run `precompile build", cli("diff", tmp_path / "none").error)
