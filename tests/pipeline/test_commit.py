from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builds import save_image, unchanged

import precompile
from precompile.errors import BuildFailedError, FormatError
from precompile.format.generation import list_generations
from precompile.format.schema import FieldSpec
from precompile.pipeline import commit
from precompile.pipeline.generation_writer import GenerationWriter
from precompile.pipeline.journal import Receipt, load_receipt
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.plan import Plan
from precompile.pipeline.prune import prune

FIELDS = (FieldSpec("image", "uint8", (3, None, None)),)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for number in range(8):
        save_image(tmp_path / "raw" / f"c{number % 2}" / f"{number}.png", number)
    return tmp_path / "raw"


@pytest.fixture
def stages(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, list[Receipt]]:
    """Plan and receipts of a real build, which was stopped before its commit."""
    (raw / "c0" / "broken.png").write_bytes(b"broken")
    caught: list[tuple[Plan, list[Receipt]]] = []

    def stop(plan: Plan, receipts: list[Receipt], fields: object, reuse: object) -> None:
        caught.append((plan, receipts))
        raise KeyboardInterrupt

    monkeypatch.setattr("precompile.pipeline.build.GenerationWriter", stop)
    with pytest.raises(KeyboardInterrupt):
        precompile.build(raw, tmp_path / "out", workers=1, quiet=True, shard_size=600, store="flat")
    monkeypatch.undo()
    return caught[0]


def test_receipts_on_disk_are_those_that_were_returned(stages: tuple[Plan, list[Receipt]], tmp_path: Path) -> None:
    for receipt in stages[1]:
        loaded = load_receipt(BuildDirs(tmp_path / "out").receipts, receipt.task)
        assert loaded is not None
        np.testing.assert_array_equal(loaded.samples, receipt.samples)
        assert (loaded.shard, loaded.quarantined) == (receipt.shard, receipt.quarantined)


def test_rows_are_in_source_order(stages: tuple[Plan, list[Receipt]]) -> None:
    plan, receipts = stages
    writer = GenerationWriter(plan, receipts, FIELDS)
    keys = list(plan.keys.take(writer.samples))
    assert keys == sorted(keys)
    assert len(keys) == writer.count == 8
    assert [(row.key, row.split) for row in writer.quarantined] == [("c0/broken.png", "all")]
    assert writer.schema["image"].shape == (3, 8, 8)


def test_fingerprint_does_not_depend_on_the_order_of_receipts(stages: tuple[Plan, list[Receipt]]) -> None:
    plan, receipts = stages
    assert len(receipts) > 1
    one, other = GenerationWriter(plan, receipts, FIELDS), GenerationWriter(plan, receipts[::-1], FIELDS)
    assert one.fingerprint(plan.classes) == other.fingerprint(plan.classes)
    assert one.fingerprint(plan.classes) != one.fingerprint(("other", "names"))


def test_a_missing_receipt_fails_the_build(stages: tuple[Plan, list[Receipt]]) -> None:
    plan, receipts = stages
    with pytest.raises(BuildFailedError, match=r"^planned 9 inputs, but \d compiled or reused and \d quarantined do"):
        GenerationWriter(plan, receipts[1:], FIELDS)


def test_an_input_that_came_twice_fails_the_build(stages: tuple[Plan, list[Receipt]]) -> None:
    plan, receipts = stages
    with pytest.raises(BuildFailedError, match="do not add up; nothing was committed"):
        GenerationWriter(plan, [*receipts, receipts[0]], FIELDS)


@pytest.mark.parametrize("change", [lambda crc: crc + 1, lambda crc: crc[::-1].copy() + 1])
def test_what_reads_back_differently_is_not_committed(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    out = tmp_path / "out"
    precompile.build(raw, out, workers=1, quiet=True)

    def forged(plan: Plan, receipts: list[Receipt], fields: tuple[FieldSpec, ...], reuse: object) -> GenerationWriter:
        return GenerationWriter(plan, [replace(receipt, crc32=change(receipt.crc32)) for receipt in receipts], fields)

    monkeypatch.setattr("precompile.pipeline.build.GenerationWriter", forged)
    with (
        unchanged(out / "generations", out / "manifest.json", out / "shards"),
        pytest.raises(FormatError, match="a record read back differs from what was written; nothing was committed"),
    ):
        precompile.build(raw, out, workers=1, quiet=True, rebuild=True)
    assert len(list((out / "generations").iterdir())) == 1


def test_a_commit_that_dies_half_way_leaves_the_old_generation(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    first = precompile.build(raw, out, workers=1, quiet=True)
    names = ["write_atomically", "sync_dir"]
    for name in names:
        monkeypatch.setattr(commit, name, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            precompile.build(raw, out, workers=1, quiet=True, size=4)
        monkeypatch.undo()
        (out / "generations" / ".DS_Store").write_text("not made by precompile")
        assert precompile.CompiledDataset(out).fingerprint == first.fingerprint
    second = precompile.build(raw, out, workers=1, quiet=True, size=4)
    assert precompile.CompiledDataset(out).manifest.generation == second.generation == 2
    assert sorted(path.name for path in (out / "generations").iterdir()) == [".DS_Store", "000001", "000002"]


def test_prune_deletes_only_what_it_knows(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for size in (4, 5, 6):
        precompile.build(raw, out, workers=1, quiet=True, size=size, keep=9)
    (out / "shards" / "notes.txt").write_text("mine")
    (out / "generations" / "README").write_text("mine")
    before = {path.name for path in (out / "shards").iterdir()}
    assert prune(BuildDirs(out), keep=2) == [1]
    after = {path.name for path in (out / "shards").iterdir()}
    assert len(before - after) == 1
    assert {"notes.txt"} <= after
    assert (out / "generations" / "README").exists()
    for generation in (2, 3):
        assert len(list(precompile.CompiledDataset(out, generation=generation))) == 8


def test_a_build_after_a_rollback_leaves_only_whole_generations(raw: Path, tmp_path: Path) -> None:
    """Somebody has put the manifest of generation 1 back."""
    out = tmp_path / "out"
    for size in (4, 5, 6):
        precompile.build(raw, out, workers=1, quiet=True, size=size, keep=9)
    old = out / "generations" / "000001" / "manifest.json"
    (out / "manifest.json").write_text(old.read_text())
    assert precompile.CompiledDataset(out, fields="image")[0].shape == (3, 4, 4)
    precompile.build(raw, out, workers=1, quiet=True, size=7, keep=9)
    assert precompile.CompiledDataset(out, fields="image")[0].shape == (3, 7, 7)
    generations = list_generations(out)
    assert generations[0] == 1
    for generation in generations:
        assert len(list(precompile.CompiledDataset(out, generation=generation))) == 8
