"""Damage on the disk is found on the way to memory, and damage in the cache is mended."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import cut, edit_column, flip, forge_index, index_file, place

from precompile import CompiledDataset
from precompile.errors import DatasetNotFoundError, ForeignDirectoryError, FormatError
from precompile.format.schema import FieldSpec
from precompile.loading.caching import copying, opening
from precompile.loading.caching.directory import CacheDirectory
from precompile.loading.caching.dropping import drop
from precompile.loading.caching.listing import survey
from precompile.loading.caching.options import Cache

FIELDS = (FieldSpec("image", "uint8", (3, 8, None)), FieldSpec("mask", "uint8", (5,)), FieldSpec("label", "int64", ()))
WANTED: dict[str, dict[str, Any]] = {"all": {}, "split": {"split": "val"}, "field": {"fields": "image"}}
LeftIn = Callable[[Path], set[str]]


@pytest.fixture
def root(tmp_path: Path, write_dataset: Callable[..., Any]) -> Path:
    write_dataset(tmp_path / "x.pc", FIELDS, 20, splits={"train": 12, "val": 8}, num_shards=2, classes=("a", "b", "c"))
    return tmp_path / "x.pc"


def assert_refused(root: Path, home: Path, left_in: LeftIn, message: str, wanted: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=message):
        CompiledDataset(root, cache=home, **wanted)
    assert left_in(home) == set()


def assert_mended(root: Path, home: Path) -> CompiledDataset:
    cached = CompiledDataset(root, cache=home)
    assert cached.stored.root.parent == home
    expected = CompiledDataset(root)
    assert all(str(cached[number]) == str(expected[number]) for number in range(len(expected)))
    return cached


@pytest.mark.parametrize("wanted", WANTED)
def test_a_damaged_record(root: Path, home: Path, left_in: LeftIn, wanted: str) -> None:
    path, offset, length = place(root, "15.raw")
    flip(path, offset + length // 2)
    message = f"{path}: expected checksum [0-9a-f]{{32}}, found [0-9a-f]{{32}}; restore the file or build again"
    if WANTED[wanted]:
        message = (
            rf"{path}: the record at {offset} \(sample 15, 15.raw\) does not have its checksum; run `precompile verify"
        )
    assert_refused(root, home, left_in, message, WANTED[wanted])


def test_a_damaged_record_that_is_not_wanted(root: Path, home: Path) -> None:
    path, offset, _ = place(root, "3.raw")
    flip(path, offset)
    assert len(CompiledDataset(root, split="val", cache=home)) == 8


@pytest.mark.parametrize("name", ["record.npy", "crc32.npy", "shape.image.npy", "column.label.npy", "key.data.npy"])
@pytest.mark.parametrize("wanted", WANTED)
def test_a_damaged_index(root: Path, home: Path, left_in: LeftIn, wanted: str, name: str) -> None:
    path = index_file(root, name)
    flip(path)
    in_the_index = f"{path}: expected checksum [0-9a-f]{{32}}, found [0-9a-f]{{32}}; restore the file or build again"
    assert_refused(root, home, left_in, in_the_index, WANTED[wanted])


@pytest.mark.parametrize("wanted", WANTED)
def test_a_record_that_lies_elsewhere(root: Path, home: Path, left_in: LeftIn, wanted: str) -> None:
    def change(rows: np.ndarray) -> None:
        rows[15, 1] = 1 << 40

    edit_column(root, "record.npy", change)
    forge_index(root)
    if wanted == "all":
        with pytest.raises(FormatError, match="a record does not fit its shard"):
            CompiledDataset(root, cache=home)[15]
    else:
        assert_refused(root, home, left_in, "record.npy: a record does not fit its shard or its schema", WANTED[wanted])


@pytest.mark.parametrize("wanted", WANTED)
def test_a_shard_that_was_cut(root: Path, home: Path, wanted: str) -> None:
    path, _, _ = place(root, "15.raw")
    cut(path)
    with pytest.raises(FormatError, match=rf"{path}: expected \d+ bytes, found \d+"):
        CompiledDataset(root, cache=home, **WANTED[wanted])
    assert list(home.glob("x.pc*")) == list(home.glob(".x.pc*")) == []


@pytest.mark.parametrize("wanted", WANTED)
def test_a_shard_that_is_cut_while_it_is_read(
    root: Path, home: Path, left_in: LeftIn, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, _ = place(root, "15.raw")
    read_at, size = copying.read_at, path.stat().st_size

    def cut_first(descriptor: int, buffer: memoryview, start: int, where: Path) -> None:
        if where == path:
            os.truncate(path, size // 2)
        read_at(descriptor, buffer, start, where)

    monkeypatch.setattr(copying, "read_at", cut_first)
    monkeypatch.setattr("precompile.loading.caching.packing.read_at", cut_first)
    assert_refused(root, home, left_in, rf"{path}: ended at \d+ bytes while it was read", WANTED[wanted])


def test_damage_in_the_cache_is_mended(root: Path, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    for harm in (
        lambda entry: cut(next((entry / "shards").iterdir())),
        lambda entry: (entry / "generations/000001/record.npy").unlink(),
        lambda entry: (entry / "manifest.json").write_text("{"),
        lambda entry: shutil.rmtree(entry / "generations"),
        lambda entry: (entry / "manifest.json").unlink(),
    ):
        entry = assert_mended(root, home).stored.root
        harm(entry)
        assert_mended(root, home)


def test_damage_that_another_process_mends_at_the_same_time(root: Path, home: Path) -> None:
    """They all see it, one drops it, and each of them ends with what was staged anew."""
    for _ in range(4):
        cut(next((assert_mended(root, home).stored.root / "shards").iterdir()))
        found: list[Any] = []

        def open_it(begin: threading.Barrier, found: list[Any] = found) -> None:
            begin.wait(30)
            try:
                found.append(CompiledDataset(root, cache=home).stored.root)
            except Exception as error:
                found.append(error)

        begin = threading.Barrier(6)
        threads = [threading.Thread(target=open_it, args=(begin,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert set(found) == {next(home.glob("x.pc-*[0-9a-f]"))}


def test_another_dataset_in_its_place_is_not_believed(
    root: Path, home: Path, tmp_path: Path, write_dataset: Callable[..., Any]
) -> None:
    write_dataset(tmp_path / "y.pc", FIELDS, 20, seed=7)
    mine, others = (CompiledDataset(path, cache=home).stored.root for path in (root, tmp_path / "y.pc"))
    facts = (mine / "entry.json").read_bytes()
    shutil.rmtree(mine)
    others.rename(mine)
    (mine / "entry.json").write_bytes(facts)
    assert_mended(root, home)


def test_damage_of_an_entry_in_use_is_mended_for_others(root: Path, home: Path) -> None:
    cached = CompiledDataset(root, cache=home)
    (cached.stored.root / "generations/000001/record.npy").unlink()
    assert_mended(root, home)
    expected = CompiledDataset(root)
    assert all(str(cached[number]) == str(expected[number]) for number in range(len(expected)))


def hostile() -> dict[str, bytes]:
    good = {"root": "/x", "generation": 1, "manifest": "0", "fingerprint": "0", "fields": None, "split": None,
            "num_bytes": 1, "pid": 1, "host": "h", "uid": 0, "staged_at": 1.5}  # fmt: skip
    bad = {
        "root": [5, "\0", None, "\ud800", {}], "generation": [-1, 1.0, True, 1 << 70, "1", None],
        "fields": ["image", [1], {"a": 1}, ["\0"]], "split": [3, ["val"], "\0"], "num_bytes": [-1, "1", 1e3],
        "pid": [True, -1], "staged_at": [float("nan"), float("inf"), "now", 3, None], "host": [None, ["h"]],
    }  # fmt: skip
    found = {f"{name}={value!r}": json.dumps({**good, name: value}).encode() for name in bad for value in bad[name]}
    found |= {f"without {name}": json.dumps({k: v for k, v in good.items() if k != name}).encode() for name in good}
    found |= {"nothing": b"", "a list": b"[]", "null": b"null", "no JSON": b"{", "no text": b"\xff\xfe"}
    return found | {"deep": b"[" * 100_000, "large": b" " * (2 << 20), "a number": b"1" * 5000}


@pytest.mark.parametrize("content", hostile().values(), ids=[ascii(name) for name in hostile()])
def test_facts_that_cannot_be(root: Path, home: Path, content: bytes) -> None:
    entry = CompiledDataset(root, cache=home).stored.root
    (entry / "entry.json").write_bytes(content)
    assert [listed.state for listed in survey(CacheDirectory(home))] == ["damaged"]
    assert_mended(root, home)


def test_facts_that_are_no_file(root: Path, home: Path) -> None:
    for harm in (os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)):
        entry = assert_mended(root, home).stored.root
        (entry / "entry.json").unlink()
        harm(entry / "entry.json")
        assert [listed.state for listed in survey(CacheDirectory(home))] == ["damaged"]


def test_a_source_that_cannot_be_a_path(root: Path, home: Path) -> None:
    entry = CompiledDataset(root, cache=home).stored.root
    facts = json.loads((entry / "entry.json").read_text())
    for odd in ("", "x" * 10_000, "/dev/zero", "/proc/self/mem", "\udcff"):
        (entry / "entry.json").write_text(json.dumps({**facts, "root": odd}))
        assert [listed.state for listed in survey(CacheDirectory(home))] == ["source gone"]


def test_a_file_in_the_place_of_an_entry(root: Path, home: Path) -> None:
    entry = CompiledDataset(root, cache=home).stored.root
    shutil.rmtree(entry)
    entry.write_text("mine")
    with pytest.raises(ForeignDirectoryError, match="expected an entry of the cache, found something else; remove it"):
        CompiledDataset(root, cache=home)
    assert entry.read_text() == "mine"


def test_dropped_before_it_is_opened(
    root: Path, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage, drops = opening.stage, itertools.count(1)
    times = 2

    def stage_and_drop(directory: CacheDirectory, *arguments: Any) -> Any:
        entry, is_new = stage(directory, *arguments)
        if next(drops) <= times:
            assert drop(directory, entry.name).stays == ""
        return entry, is_new

    monkeypatch.setattr(opening, "stage", stage_and_drop)
    caplog.set_level(logging.INFO, "precompile")
    assert_mended(root, home)
    assert sum("staged" in record.getMessage() for record in caplog.records) == 3
    times = 99
    CacheDirectory(home)
    drop(CacheDirectory(home), next(home.glob("x.pc-*[0-9a-f]")).name, force=True)
    with pytest.raises(DatasetNotFoundError, match="was staged 5 times, and each time dropped before it was opened"):
        CompiledDataset(root, cache=Cache(directory=home))
