"""A dataset read through the cache is the dataset, in every respect."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builds import REPOSITORY
from torch.utils.data import DataLoader

from precompile import CompiledDataset, Loader
from precompile.format.schema import TEXT, FieldSpec
from precompile.format.stored import Stored
from precompile.loading.caching import packing
from precompile.loading.caching.options import Cache
from precompile.loading.reading.windows import RandomCrop

Write = Callable[..., list[dict[str, Any]]]
LABEL, NOTE, SCORE = FieldSpec("label", "int64", ()), FieldSpec("note", TEXT, ()), FieldSpec("score", "float32", ())
SCHEMAS = {
    "fixed": (FieldSpec("image", "uint8", (3, 9, 7)), LABEL, FieldSpec("mask", "int16", (5,)), NOTE),
    "hwc": (FieldSpec("image", "uint8", (3, 9, 7), "raw_hwc"), LABEL, FieldSpec("depth", "float16", (9, 7))),
    "bmp": (LABEL, FieldSpec("mask", "uint8", (1, 9, 7), "bmp"), FieldSpec("image", "uint8", (3, 9, 7), "bmp")),
    "varying": (FieldSpec("image", "uint8", (3, None, None)), LABEL, NOTE, FieldSpec("clip", "float32", (4, None))),
    "varying bmp": (FieldSpec("image", "uint8", (3, None, None), "bmp"), FieldSpec("clip", "int8", (None,)), SCORE),
}
COUNT, SPLITS = 23, {"train": 14, "none": 0, "val": 9}


def values(sample: Any) -> Any:
    """A sample, in a form that can be compared."""
    if isinstance(sample, dict):
        return {name: values(value) for name, value in sample.items()}
    if isinstance(sample, tuple):
        return tuple(map(values, sample))
    return (str(sample.dtype), sample.shape, sample.stride(), sample.tolist()) if torch.is_tensor(sample) else sample


def assert_same(found: CompiledDataset, expected: CompiledDataset) -> None:
    assert len(found) == len(expected)
    assert [values(sample) for sample in found] == [values(sample) for sample in expected]
    everything = list(range(len(expected)))
    if everything:
        batches = [dataset.collate(dataset.__getitems__(everything)) for dataset in (found, expected)]
        assert str(batches[0]) == str(batches[1])
        assert found.sample_number(-1) == expected.sample_number(-1)
    assert list(found.keys) == list(expected.keys)
    for name in expected.stored.index.columns:
        assert list(found.column(name)) == list(expected.column(name))
    for name in expected.field_names:
        if not expected.schema[name].is_fixed:
            assert np.array_equal(found.lengths(name), expected.lengths(name))
    for name in ("fingerprint", "classes", "class_to_idx", "field_names", "root", "fields", "split"):
        assert getattr(found, name) == getattr(expected, name)
    assert found.manifest.generation == expected.manifest.generation
    assert found.manifest.splits == expected.manifest.splits


def choices(schema: tuple[FieldSpec, ...]) -> list[Any]:
    """None, each field alone, and every pair, not in the schema's order."""
    names = [spec.name for spec in reversed(schema)]
    return [None, *names, *itertools.combinations(names, 2)]


@pytest.mark.parametrize("store", ["flat", "lmdb"])
@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_choice_of_fields_and_split(
    tmp_path: Path, write_dataset: Write, schema: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MIN_SHARD_BYTES", 2000)
    root, fields = tmp_path / "x.pc", SCHEMAS[schema]
    write_dataset(root, fields, COUNT, splits=SPLITS, num_shards=3, store=store, classes=("a", "b", "c"))
    for number, chosen in enumerate(choices(fields)):
        for split in (None, *SPLITS):
            cache = tmp_path / f"cache {number} {split}"
            plain = CompiledDataset(root, fields=chosen, split=split)
            cached = CompiledDataset(root, fields=chosen, split=split, cache=cache)
            assert_same(cached, plain)
            has_arrays = any(not plain.schema[name].is_column for name in plain.field_names)
            assert cached.stored.root == (next(cache.glob("x.pc-*[0-9a-f]")) if has_arrays else root)


def test_an_entry_of_everything_is_a_copy_of_the_files(images: Any, home: Path) -> None:
    root, _ = images
    entry = CompiledDataset(root, cache=home).stored.root
    for path in root.rglob("*"):
        if path.is_file():
            assert (entry / path.relative_to(root)).read_bytes() == path.read_bytes()


def test_a_part_is_a_dataset_whose_checksums_fit(tmp_path: Path, write_dataset: Write, home: Path) -> None:
    import zlib

    from precompile.pipeline.checksum import file_checksum

    root = tmp_path / "x.pc"
    write_dataset(root, SCHEMAS["varying"], COUNT, splits=SPLITS, num_shards=3)
    stored = CompiledDataset(root, fields="clip", split="val", cache=home).stored
    for shard, path in zip(stored.manifest.shards, stored.shard_paths):
        assert (file_checksum(path), f"{shard.xxh3}.flat") == (shard.xxh3, path.name)
    for name, item in stored.manifest.index.items():
        path = stored.index.directory / name
        assert (path.stat().st_size, file_checksum(path)) == (item.bytes, item.xxh3)
    for number in range(14, COUNT):
        assert zlib.crc32(stored.record(number)) == stored.index.crc32[number]


def test_only_what_is_wanted_is_staged(mebibytes: Callable[[int], Path], tmp_path: Path, write_dataset: Write) -> None:
    root = tmp_path / "x.pc"
    fields = (FieldSpec("large", "uint8", (1 << 20,)), FieldSpec("small", "uint8", (1 << 10,)))
    write_dataset(root, fields, 6, splits={"train": 4, "val": 2})

    def staged(**wanted: Any) -> int:
        stored = CompiledDataset(root, cache=tmp_path / str(wanted), **wanted).stored
        return sum(path.stat().st_size for path in stored.shard_paths)

    assert staged() // (1 << 20) == 6
    assert staged(split="val") // (1 << 20) == 2
    assert staged(fields="small") == 64 + 6 * 1024
    assert staged(fields="small", split="train") == 64 + 4 * 1024


def test_samples_that_share_a_record_share_it_in_the_cache(tmp_path: Path, write_dataset: Write, home: Path) -> None:
    from damage import edit_column, forge_index

    root = tmp_path / "x.pc"
    write_dataset(root, SCHEMAS["fixed"], COUNT, splits=SPLITS)
    for name in ("record.npy", "crc32.npy"):
        edit_column(root, name, lambda rows: np.repeat(rows[:1], len(rows), axis=0))
    forge_index(root)
    cached = CompiledDataset(root, fields="image", cache=home)
    assert_same(cached, CompiledDataset(root, fields="image"))
    assert [path.stat().st_size for path in cached.stored.shard_paths] == [64 + 192]


def batches(dataset: CompiledDataset) -> list[Any]:
    loader = Loader(dataset, 4, shuffle=True, seed=3, windows={"image": RandomCrop((4, 5))})
    return [batch.tolist() for _ in range(2) for batch in loader]


def test_a_loader_gives_the_same_crops_in_the_same_order(images: Any, home: Path) -> None:
    root, _ = images
    plain = batches(CompiledDataset(root, fields="image", split="val"))
    assert batches(CompiledDataset(root, fields="image", split="val", cache=home / "part")) == plain
    CompiledDataset(root, cache=home / "all")
    assert batches(CompiledDataset(root, fields="image", split="val", cache=home / "all")) == plain


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_the_cache(images: Any, home: Path, method: str) -> None:
    root, _ = images
    plain, cached = (CompiledDataset(root, split="train", cache=cache) for cache in (None, home))
    loader = DataLoader(cached, 8, num_workers=1, multiprocessing_context=method, collate_fn=cached.collate)
    assert str(list(loader)) == str(list(DataLoader(plain, 8, collate_fn=plain.collate)))


def test_copies(images: Any, home: Path) -> None:
    root, _ = images
    cached = CompiledDataset(root, split="val", cache=Cache(directory=home))
    for clone in (copy.copy(cached), copy.deepcopy(cached), pickle.loads(pickle.dumps(cached))):
        assert clone.stored.root == cached.stored.root
        assert clone.cache == cached.cache
        assert_same(clone, CompiledDataset(root, split="val"))
    assert copy.deepcopy(cached).stored is cached.stored


def test_an_entry_with_more_is_used(images: Any, home: Path, left_in: Any) -> None:
    root, _ = images
    everything = CompiledDataset(root, cache=home).stored.root
    for wanted in ({"split": "val"}, {"fields": "image"}, {"fields": ("label", "image"), "split": "train"}):
        cached = CompiledDataset(root, cache=home, **wanted)
        assert cached.stored.root == everything
        assert_same(cached, CompiledDataset(root, **wanted))
    assert left_in(home) == {everything.name, f"{everything.name}.lock"}


def test_an_entry_with_less_or_other_things_is_not_used(tmp_path: Path, write_dataset: Write, home: Path) -> None:
    root = tmp_path / "x.pc"
    write_dataset(root, SCHEMAS["fixed"], COUNT, splits=SPLITS)
    roots = [
        CompiledDataset(root, cache=home, **wanted).stored.root
        for wanted in ({"split": "val"}, {"split": "train"}, {"fields": "image"}, {"fields": "mask"}, {})
    ]
    assert len(set(roots)) == 5


def test_the_same_dataset_by_other_names_is_staged_once(images: Any, home: Path, tmp_path: Path) -> None:
    root, _ = images
    link = tmp_path / "link"
    link.symlink_to(root)
    assert CompiledDataset(link, cache=home).stored.root == CompiledDataset(root, cache=str(home)).stored.root


@pytest.mark.parametrize("name", ["a b", "ä/ö", "-rf", "..x", "x\ny", "\udcff\udcfe", "$(id)", "x" * 200, "'\"*"])
def test_odd_names(tmp_path: Path, write_dataset: Write, home: Path, name: str) -> None:
    root = tmp_path / name
    write_dataset(root, SCHEMAS["fixed"], 5)
    cached = CompiledDataset(root, cache=home)
    assert_same(cached, CompiledDataset(root))
    assert cached.stored.root.parent == home
    assert cached.stored.root.name.isascii()
    assert json.loads((cached.stored.root / "entry.json").read_text())["root"] == str(root)


def test_wrong_fields_and_splits_are_refused_before_anything_is_staged(images: Any, home: Path) -> None:
    root, _ = images
    for wrong, message in (
        ({"split": "test"}, "split must be one of train, val, got 'test'"),
        ({"fields": ("image", "nope")}, "no field 'nope'; choose from image, label, note"),
    ):
        for cache in (None, home):
            with pytest.raises(ValueError, match=message):
                CompiledDataset(root, cache=cache, **wrong)
    assert not home.exists()


READ = """
import sys
from precompile import CompiledDataset
CompiledDataset(sys.argv[1], cache=sys.argv[2])[0]
print(*sorted({"xxhash", "click", "precompile.pipeline"} & set(sys.modules)))
"""


def test_who_does_not_stage_imports_no_checksums(images: Any, home: Path) -> None:
    CompiledDataset(images[0], cache=home)
    command = [sys.executable, "-c", READ, images[0], home]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def test_an_entry_opens_by_itself(images: Any, home: Path) -> None:
    root, samples = images
    stored = Stored(CompiledDataset(root, split="val", cache=home).stored.root)
    assert np.array_equal(stored.array(45, "image"), samples[45]["image"])
