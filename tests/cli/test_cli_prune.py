"""`precompile prune`: what it says, and that it waits for nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from builds import assert_matches, build, cli, save_image, unchanged
from inline_executor import inline  # noqa: F401  (a fixture)

import precompile
from precompile.format.generation import list_generations
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.lock import locked

pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture
def four(raw: Path, out: Path) -> Path:
    """Four generations that share no shard."""
    for size in (4, 5, 6, 7):
        assert build(raw, out, "--quiet", "--size", size, "--keep", 9).code == 0
    return out


def num_bytes(out: Path) -> int:
    return sum(path.stat().st_size for path in out.rglob("*") if path.is_file() and "build" not in path.parts)


def test_json(four: Path) -> None:
    before = num_bytes(four)
    done = cli("prune", four, "--keep", 1, "--json")
    assert done.code == 0
    assert list(done.json) == ["removed", "kept", "freed_bytes"]
    assert (done.json["removed"], done.json["kept"]) == ([1, 2, 3], [4])
    freed = before - num_bytes(four)
    assert done.json["freed_bytes"] >= freed > 0  # folders count too
    assert done.json["freed_bytes"] < freed + 40_000
    again = cli("prune", four, "--keep", 1, "--json").json
    assert again == {"removed": [], "kept": [4], "freed_bytes": 0}
    assert list((four / "build").iterdir()) == []


def test_text_and_default(four: Path) -> None:
    done = cli("prune", four)
    assert_matches(rf"^{four}: removed generations: 1, 2; kept: 3, 4; \d+\.\d MB freed\n$", done.out)
    assert cli("prune", four).out == f"{four}: removed generations: none; kept: 3, 4; 0.0 MB freed\n"


def test_an_open_generation_stays_and_is_named(four: Path) -> None:
    dataset = precompile.CompiledDataset(four, generation=1)
    done = cli("prune", four, "--keep", 1)
    assert done.code == 0
    assert done.out.splitlines()[1:] == [f"{four}: generation 1 stays, somebody has it open"]
    assert list_generations(four) == [1, 4]
    assert len([dataset[number] for number in range(len(dataset))]) == 12
    del dataset
    assert cli("prune", four, "--keep", 1, "--json").json["removed"] == [1]


def test_while_a_build_is_at_work_it_ends_at_once(four: Path) -> None:
    with locked(BuildDirs(four)), unchanged(four):
        refused = cli("prune", four, "--keep", 1)
    assert refused.code == 75
    assert_matches(r"another build \(pid \d+ on .*, since .*\) is writing here", refused.error)


def test_keep_must_be_positive(four: Path) -> None:
    with unchanged(four):
        refused = cli("prune", four, "--keep", 0)
    assert (refused.code, refused.error) == (2, "error: keep must be at least 1, got keep=0")


def test_no_dataset_is_left_alone(tmp_path: Path) -> None:
    save_image(tmp_path / "photos" / "a.png")
    with unchanged(tmp_path):
        assert_matches("photos: no compiled dataset here", cli("prune", tmp_path / "photos").error)
        assert_matches("none: no such directory", cli("prune", tmp_path / "none").error)
    assert not (tmp_path / "photos" / ".precompile.lock").exists()
