"""Old generations go, what somebody still needs stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from builds import REPOSITORY, save_image
from inline_executor import InlineExecutor, inline  # noqa: F401  (a fixture)

import precompile
from precompile.format.generation import generation_dir, list_generations, read_generation
from precompile.pipeline import prune as module
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.prune import prune
from precompile.pipeline.verify import verify

pytestmark = pytest.mark.usefixtures("inline")

OPEN = """
import sys
import precompile
dataset = precompile.CompiledDataset(sys.argv[1], generation=int(sys.argv[2]))
print("open", flush=True)
sys.stdin.readline()
print(len([dataset[i] for i in range(len(dataset))]), flush=True)
"""


def build(raw: Path, out: Path, **options: object) -> None:
    precompile.build(raw, out, quiet=True, workers=1, store="flat", **{"keep": 9, **options})


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for number in range(6):
        save_image(tmp_path / "raw" / f"{number}.png", number)
    return tmp_path / "raw"


@pytest.fixture
def out(raw: Path, tmp_path: Path) -> Path:
    """Four generations that share no shard."""
    for size in (4, 5, 6, 7):
        build(raw, tmp_path / "out", size=size)
    return tmp_path / "out"


def files(out: Path, *generations: int) -> set[str]:
    return {shard.file for generation in generations for shard in read_generation(out, generation).shards}


def present(out: Path) -> set[str]:
    return {path.name for path in (out / "shards").iterdir()}


def assert_whole(out: Path, *generations: int) -> None:
    assert list_generations(out) == list(generations)
    for generation in generations:
        dataset = precompile.CompiledDataset(out, generation=generation)
        assert len([dataset[number] for number in range(len(dataset))]) == len(dataset)


@pytest.mark.parametrize(("keep", "kept"), [(1, [4]), (2, [3, 4]), (4, [1, 2, 3, 4]), (9, [1, 2, 3, 4])])
def test_the_newest_are_kept(out: Path, keep: int, kept: list[int]) -> None:
    expected = files(out, *kept)
    assert prune(BuildDirs(out), keep=keep) == [number for number in (1, 2, 3, 4) if number not in kept]
    assert present(out) == expected
    assert_whole(out, *kept)
    assert prune(BuildDirs(out), keep=keep) == []


def test_shards_that_a_kept_generation_shares_stay(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(raw, out)
    save_image(raw / "new.png", 9)
    build(raw, out)
    assert files(out, 1) < files(out, 2)
    assert prune(BuildDirs(out), keep=1) == [1]
    assert_whole(out, 2)
    assert len(present(out)) == 2


@pytest.fixture
def reader(out: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has generation 1 open, and reads it all when it is told to."""
    process = subprocess.Popen(
        [sys.executable, "-c", OPEN, str(out), "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.communicate()


def test_a_generation_that_another_process_has_open_stays(out: Path, reader: subprocess.Popen[str]) -> None:
    needed = files(out, 1, 4)
    assert prune(BuildDirs(out), keep=1) == [2, 3]
    assert present(out) == needed
    assert_whole(out, 1, 4)
    assert reader.communicate("\n")[0] == "6\n"
    assert prune(BuildDirs(out), keep=1) == [1]
    assert present(out) == files(out, 4)


def test_a_build_prunes_with_the_same_care(raw: Path, out: Path, reader: subprocess.Popen[str]) -> None:
    build(raw, out, size=8, keep=1)
    assert_whole(out, 1, 5)
    assert reader.communicate("\n")[0] == "6\n"


def test_finished_shards_of_a_stopped_build_stay(raw: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("precompile.pipeline.build.GenerationWriter", stop)
        with pytest.raises(KeyboardInterrupt):
            build(raw, out, size=8, shard_size=400)
    finished = present(out) - files(out, 1, 2, 3, 4)
    assert len(finished) > 1
    prune(BuildDirs(out), keep=1)
    assert present(out) == files(out, 4) | finished

    def never(*_: object) -> None:
        raise AssertionError("nothing is left to compile")

    monkeypatch.setattr(InlineExecutor, "probe", never)
    monkeypatch.setattr("precompile.pipeline.compile_shard.ShardCompiler.compile", never)
    build(raw, out, size=8, shard_size=400)
    assert_whole(out, 4, 5)


@pytest.mark.parametrize("again", ["prune", "a build that has nothing to do", "a build"])
def test_a_crash_while_a_generation_is_deleted_is_swept_later(
    raw: Path, out: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    def die(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            prune(BuildDirs(out), keep=3)
    assert_whole(out, 2, 3, 4)
    assert len(list((out / "generations").glob(".*"))) == 1
    if again == "prune":
        prune(BuildDirs(out), keep=3)
    else:
        build(raw, out, size=7 if "nothing" in again else 8, keep=3)
    assert list((out / "generations").glob(".*")) == []
    assert present(out) == files(out, *list_generations(out))


def test_the_renamed_generation_is_deleted_when_the_lock_is_let_go(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS keeps files that are open, and the locked one is."""
    held: list[bool] = []
    rmtree = shutil.rmtree

    def note(path: Path) -> None:
        manifest = (path / "manifest.json").stat()
        opened = [os.stat(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
                  if os.path.exists(f"/proc/self/fd/{name}")]  # fmt: skip
        held.append(any(os.path.samestat(manifest, other) for other in opened))
        rmtree(path)

    monkeypatch.setattr(module.shutil, "rmtree", note)
    assert prune(BuildDirs(out), keep=2) == [1, 2]
    assert held == [False, False]


def test_what_precompile_did_not_make_stays(out: Path) -> None:
    foreign = [out / "shards" / name for name in ("notes.txt", "mine.lmdb", "backup.flat", f"{'a' * 31}.flat")]
    foreign += [out / "generations" / "README", out / "generations" / "000001.bak"]
    for path in foreign:
        path.write_text("mine")
    folder = out / "shards" / f"{'0' * 32}.flat"
    folder.mkdir()
    prune(BuildDirs(out), keep=1)
    assert all(path.exists() for path in [*foreign, folder])


def test_after_a_rollback_nothing_is_lost_until_the_next_commit(raw: Path, out: Path) -> None:
    """Somebody put the manifest of generation 2 back; the later ones may be put back, too."""
    shutil.copyfile(generation_dir(out, 2) / "manifest.json", out / "manifest.json")
    needed = files(out, 2)
    later = {
        shard.file for n in (3, 4) for shard in module.read_manifest(generation_dir(out, n) / "manifest.json").shards
    }
    assert prune(BuildDirs(out), keep=1) == [1]
    assert present(out) == needed | later
    assert_whole(out, 2)
    build(raw, out, size=9, keep=2)
    assert_whole(out, 2, 3)
    assert present(out) == files(out, 2, 3)


def test_a_damaged_old_manifest_keeps_all_shards(out: Path) -> None:
    (generation_dir(out, 3) / "manifest.json").write_text("{")
    before = present(out)
    assert prune(BuildDirs(out), keep=2) == [1]
    assert present(out) == before
    assert verify(out, full=True) == []
