"""OUT while it is staged and while the copy is read: replaced, switched, pruned; and orders that depend on it."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precompile import BlockShuffleSampler, CompiledDataset
from precompile.errors import DatasetNotFoundError, FormatError
from precompile.format import lease
from precompile.format.generation import generation_dir
from precompile.format.schema import FieldSpec
from precompile.loading.caching import part, staging
from precompile.loading.caching.directory import CacheDirectory
from precompile.loading.caching.dropping import drop
from precompile.loading.caching.options import Cache
from precompile.loading.caching.staging import add

Write = Callable[..., list[dict[str, Any]]]
FIELDS = (
    FieldSpec("image", "uint8", (1, 4, 4)),
    FieldSpec("large", "float32", (400,)),
    FieldSpec("label", "int64", ()),
)
WANTED: list[dict[str, Any]] = [{}, {"fields": "image"}, {"split": "a"}]


def make(root: Path, write_dataset: Write, generation: int, seed: int = 0) -> Path:
    write_dataset(root, FIELDS, 60, splits={"a": 40, "b": 20}, num_shards=3, seed=seed, generation=generation)
    return root


def text(dataset: CompiledDataset) -> str:
    return str([dataset[number] for number in range(len(dataset))])


def before_copying(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Do something once, when the index has been read and nothing is copied yet."""
    calls = [do]

    def make_place(self: Any, name: str, plain: Any = staging._Staging._make_place) -> None:
        plain(self, name)
        while calls:
            calls.pop()()

    monkeypatch.setattr(staging._Staging, "_make_place", make_place)


@pytest.mark.parametrize("wanted", WANTED)
def test_a_link_that_is_switched_while_it_is_staged(
    tmp_path: Path, home: Path, write_dataset: Write, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (make(tmp_path / name, write_dataset, 1, seed) for seed, name in enumerate(("old.pc", "new.pc")))
    link = tmp_path / "current"
    link.symlink_to(old)

    def switch() -> None:
        link.unlink()
        link.symlink_to(new)

    before_copying(monkeypatch, switch)
    for root in (old, new):
        cached = CompiledDataset(link, cache=home, **wanted)
        assert cached.stored.root.parent == home
        assert text(cached) == text(CompiledDataset(root, **wanted))


@pytest.mark.parametrize("wanted", WANTED)
def test_a_generation_that_is_pruned_while_it_is_staged(
    tmp_path: Path, home: Path, write_dataset: Write, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system has no locks, nothing keeps it."""
    root = make(tmp_path / "x.pc", write_dataset, 1)

    def replace() -> None:
        make(root, write_dataset, 2, seed=1)
        shutil.rmtree(generation_dir(root, 1))
        for path in (root / "shards").glob(f"{1:016x}*"):
            path.unlink()

    monkeypatch.setattr(lease, "_lock", lambda descriptor, *, shared: False)
    before_copying(monkeypatch, replace)
    cached = CompiledDataset(root, cache=home, **wanted)
    assert cached.manifest.generation == 2
    assert text(cached) == text(CompiledDataset(root, **wanted))
    before_copying(monkeypatch, lambda: shutil.rmtree(generation_dir(root, 2)))
    shutil.rmtree(home)
    with pytest.raises((FormatError, DatasetNotFoundError)):
        add(root, Cache(directory=home), generation=2)


def test_the_source_is_kept_while_the_copy_is_read(tmp_path: Path, home: Path, write_dataset: Write) -> None:
    root = make(tmp_path / "x.pc", write_dataset, 1)
    cached = CompiledDataset(root, split="b", cache=home)
    pickled, expected = pickle.dumps(cached), text(cached)
    make(root, write_dataset, 2, seed=1)
    assert lease.is_in_use(generation_dir(root, 1))
    assert drop(CacheDirectory(home), cached.stored.root.name, force=True).stays == ""
    worker = pickle.loads(pickled)
    assert text(worker) == expected
    del cached
    assert lease.is_in_use(generation_dir(root, 1))
    again = pickle.loads(pickle.dumps(worker))
    assert text(again) == expected
    del worker
    assert lease.is_in_use(generation_dir(root, 1))
    del again
    assert not lease.is_in_use(generation_dir(root, 1))


def test_without_leases_it_is_read_all_the_same(
    tmp_path: Path, home: Path, write_dataset: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_lock", lambda descriptor, *, shared: False)
    root = make(tmp_path / "x.pc", write_dataset, 1)
    assert text(CompiledDataset(root, cache=home)) == text(CompiledDataset(root))


def order(dataset: Any, **ranks: int) -> list[int]:
    return list(BlockShuffleSampler(dataset, seed=1, run_bytes=5000, window_runs=3, **ranks))


@pytest.mark.parametrize("split", [None, "a"])
def test_a_block_shuffle_is_the_same_whatever_is_staged(
    tmp_path: Path, write_dataset: Write, split: str | None
) -> None:
    root = make(tmp_path / "x.pc", write_dataset, 1)
    add(root, Cache(directory=tmp_path / "whole"))
    wanted = {"fields": ("image", "label"), "split": split}
    plain, *cached = (
        CompiledDataset(root, cache=cache, **wanted) for cache in (None, tmp_path / "part", tmp_path / "whole")
    )
    assert part.SOURCE_LENGTHS in cached[0].manifest.index
    assert part.SOURCE_LENGTHS not in cached[1].manifest.index
    for dataset in cached:
        assert order(dataset) == order(plain)
        state = BlockShuffleSampler(dataset).state_dict()
        BlockShuffleSampler(plain).load_state_dict(state)
    ranks = [order(dataset, rank=rank, world_size=2) for rank, dataset in enumerate(cached)]
    assert sorted(ranks[0] + ranks[1]) == list(range(len(plain)))


def test_the_checksums_of_a_part_are_those_of_its_files(tmp_path: Path, home: Path, write_dataset: Write) -> None:
    from precompile.pipeline.checksum import file_checksum

    stored = CompiledDataset(make(tmp_path / "x.pc", write_dataset, 1), fields="image", cache=home).stored
    for name, item in stored.manifest.index.items():
        path = stored.index.directory / name
        assert (path.stat().st_size, file_checksum(path)) == (item.bytes, item.xxh3)


def test_wrong_options_are_refused_before_anything_is_staged(tmp_path: Path, home: Path, write_dataset: Write) -> None:
    root = make(tmp_path / "x.pc", write_dataset, 1)
    for wrong, message in (
        ({"fields": ("image", "image")}, "fields must name each field once, got image, image"),
        ({"transform": {"sound": abs}}, "transform must name fields among image, large, label, got sound"),
        ({"fields": "label", "transform": abs}, "transform needs an array field among fields, got label"),
    ):
        for cache in (None, home):
            with pytest.raises(ValueError, match=message):
                CompiledDataset(root, cache=cache, **wrong)
    assert not home.exists()


def test_only_the_exact_entry_is_looked_at_when_it_is_there(
    tmp_path: Path, home: Path, write_dataset: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(tmp_path / "x.pc", write_dataset, 1)
    CompiledDataset(root, cache=home)
    monkeypatch.setattr(CacheDirectory, "entries", lambda directory: pytest.fail("all entries are read"))
    assert len(CompiledDataset(root, cache=home)) == 60


def test_a_copy_on_a_disk_that_may_only_be_read(small_disk: Path, tmp_path: Path, write_dataset: Write) -> None:
    root = make(tmp_path / "x.pc", write_dataset, 1)
    add(root, Cache(directory=small_disk / "cache"))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    cached = CompiledDataset(root, cache=small_disk / "cache")
    assert cached.stored.root.parent == small_disk / "cache"
    assert os.statvfs(cached.stored.root).f_flag & os.ST_RDONLY
    assert text(cached) == text(CompiledDataset(root))
