"""docs/format.md is enough to read a dataset."""

from __future__ import annotations

import ast
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import page_reader
import pytest
from page_reader import PageReader
from PIL import Image

import precompile
from precompile import CompiledDataset
from precompile.format.stored import Stored

Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(source, **keys): compiled with several shards."""

    def compile_it(source: Path, **keys: Any) -> Path:
        out = tmp_path / "compiled"
        precompile.build(source, out, workers=1, quiet=True, shard_size=20_000, **keys)
        return out

    return compile_it


def check_same(out: Path) -> PageReader:
    reader, dataset = PageReader(str(out)), CompiledDataset(out)
    assert reader.count == len(dataset) > 0
    assert reader.keys == list(dataset.keys)
    assert (reader.manifest["classes"] or []) == dataset.classes
    for number in range(reader.count):
        assert zlib.crc32(reader.stored(number).tobytes()) == reader.crc32[number]
        check_sample(reader[number], dataset[number])
    for split in reader.manifest["splits"]:
        part = CompiledDataset(out, split=split["name"])
        assert [reader.keys[number] for number in reader.split(split["name"])] == list(part.keys)
    return reader


def check_sample(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, int | float | str):
            assert found[name] == value
        else:
            assert found[name].dtype == value.numpy().dtype
            assert np.array_equal(found[name], value.numpy())


def test_the_reader_imports_numpy_and_json_only() -> None:
    assert page_reader.__file__ is not None
    nodes = list(ast.walk(ast.parse(Path(page_reader.__file__).read_text())))
    imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    assert sorted(imported) == ["json", "numpy"]
    assert not any(isinstance(node, ast.ImportFrom) for node in nodes)
    assert not any(isinstance(node, ast.Name) and node.id in ("__import__", "exec", "eval") for node in nodes)


def test_pictures_of_one_size_in_lmdb(photos: Path, build: Build) -> None:
    reader = check_same(build(photos, size=32, crop=32))
    assert [split["name"] for split in reader.manifest["splits"]] == ["train", "val"]
    assert len(reader.shards) > 1


def test_spectrograms_of_varying_length_in_flat_shards(clips: Path, build: Build) -> None:
    reader = check_same(build(clips, store="flat"))
    assert len({reader[number]["spectrogram"].shape for number in range(reader.count)}) > 1
    assert len(reader.shards) > 1


@pytest.mark.parametrize("store", ["lmdb", "flat"])
def test_several_array_fields(clips: Path, build: Build, store: str) -> None:
    reader = check_same(build(clips, store=store, features={"mel": {}, "waveform": {}}))
    assert len(reader.arrays) == 2


@pytest.mark.parametrize("keys", [{"encoding": "bmp"}, {"layout": "HWC"}], ids=["bmp", "raw_hwc"])
@pytest.mark.parametrize("size", [(30, 41), None], ids=["one size", "any size"])
def test_encodings_of_pictures(
    tmp_path: Path, make_photos: Callable[..., Path], build: Build, keys: dict[str, str], size: tuple[int, int] | None
) -> None:
    raw = make_photos(tmp_path / "raw", count=8, size=size)
    reader = check_same(build(raw, **keys))
    assert reader.arrays[0]["encoding"] == {"bmp": "bmp", "HWC": "raw_hwc"}[next(iter(keys.values()))]


def test_text_and_numbers_of_a_table(tmp_path: Path, make_photos: Callable[..., Path], build: Build) -> None:
    raw = make_photos(tmp_path / "raw", count=6, splits=())
    paths = sorted(path.relative_to(raw).as_posix() for path in raw.rglob("*.jpg"))
    captions = ["a cat", "", "ein Hund, nass", "猫", "🐈 twice", "last"]
    rows = [
        f'{path},{number % 2},"{caption}",{number / 4}' for number, (path, caption) in enumerate(zip(paths, captions))
    ]
    (raw / "table.csv").write_text("\n".join(["path,label,caption,score", *rows]) + "\n", encoding="utf-8")
    reader = check_same(build(raw / "table.csv", size=16, crop=16))
    assert reader.keys == paths
    assert reader.columns["caption"] == captions
    assert reader.columns["score"] == [number / 4 for number in range(6)]
    assert reader.columns["label"] == [0, 1] * 3


def read_lmdb_shard(path: Path) -> list[bytes]:
    """The records of a shard by slot, by the page's table and plain LMDB."""
    records: list[bytes] = []
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
        for key, value in transaction.cursor():
            magic, version, first_slot, count, length, table = struct.unpack_from("<4sIQQQQ", value)
            assert (magic, version, first_slot) == (b"PCLM", 1, len(records))
            assert struct.unpack(">Q", key) == (first_slot,)
            lengths = [length] * count if length else struct.unpack_from(f"<{count}Q", value, table)
            at = 48
            for size in lengths:
                records.append(value[at : at + size])
                at += -(-size // 64) * 64
    return records


@pytest.mark.parametrize("source", ["photos", "clips", "large"])
def test_shards_are_lmdb_files_for_any_tool(
    tmp_path: Path, photos: Path, clips: Path, build: Build, source: str
) -> None:
    """Packs of equal and of different lengths, and records with a value of their own."""
    if source == "large":
        (tmp_path / "raw").mkdir()
        for number in range(5):
            picture = np.full((160, 140 + 5 * number, 3), 40 * number, np.uint8)
            Image.fromarray(picture).save(tmp_path / "raw" / f"{number}.png")
    out = build({"photos": photos, "clips": clips, "large": tmp_path / "raw"}[source])
    stored = Stored(out)
    for number, shard in enumerate(stored.manifest.shards):
        found = read_lmdb_shard(out / "shards" / shard.file)
        rows = np.flatnonzero(stored.index.record[:, 0] == number).tolist()
        assert len(found) == shard.records
        assert sorted(found) == sorted(stored.record(row).tobytes() for row in rows)


def test_flat_shards_have_the_header_of_the_page(clips: Path, build: Build) -> None:
    stored = Stored(build(clips, store="flat"))
    for number, shard in enumerate(stored.manifest.shards):
        content = (stored.root / "shards" / shard.file).read_bytes()
        rows = stored.index.record[stored.index.record[:, 0] == number]
        offsets, steps = np.sort(rows[:, 1]), -(-rows[:, 2] // 64) * 64
        pitch = int(steps[0]) if len(set(steps.tolist())) == 1 else 0
        header = (b"PCFLAT\r\n", 1, 64, len(rows), pitch)
        assert struct.unpack_from("<8sIIQQ", content) == header
        assert offsets[0] == 64
        assert len(content) == 64 + steps.sum()
