from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from format_strategies import schemas
from hypothesis import given
from hypothesis import strategies as st

from precompile.errors import DatasetNotFoundError, FormatError
from precompile.format.manifest import IndexFile, Manifest, Shard, Split, parse_manifest, read_manifest
from precompile.format.schema import FieldSpec, Schema

WHERE = Path("flowers/manifest.json")
FILE = "0123456789abcdef" * 2 + ".lmdb"


def make(**values: Any) -> Manifest:
    facts: dict[str, Any] = {
        "generation": 3,
        "schema": Schema((FieldSpec("image", "uint8", (3, 4, None)), FieldSpec("label", "int64", ()))),
        "count": 5,
        "classes": ("cat", "dög"),
        "splits": (Split("train", 0, 4), Split("val", 4, 1)),
        "shards": (Shard(FILE, 4096, 5, FILE[:32], {"numpy": "2.0"}),),
        "index": {"record.npy": IndexFile(248, "ab" * 16)},
        "fingerprint": "f" * 32,
        "store": "lmdb",
        "recipe": {"size": 4, "resolved": {"engine": {}}},
        "recipe_digest": "d" * 32,
        "source": {"root": "/data", "media": "image", "digest": ""},
        "quarantined": 1,
        "left_out": {".txt": 2},
        "created_at": "2024-01-01T00:00:00+00:00",
        "made_by": "precompile 0.1.0",
    }
    return Manifest(**{**facts, **values})


@given(
    schemas(),
    st.lists(
        st.tuples(st.text(max_size=5), st.integers(0, 2**40)), min_size=1, max_size=4, unique_by=lambda run: run[0]
    ),
    st.none() | st.lists(st.text(max_size=5), max_size=4).map(tuple),
)
def test_json_round_trip(schema: Schema, runs: list[tuple[str, int]], classes: tuple[str, ...] | None) -> None:
    starts = [sum(count for _, count in runs[:i]) for i in range(len(runs))]
    splits = tuple(Split(name, start, count) for (name, count), start in zip(runs, starts))
    manifest = make(schema=schema, splits=splits, classes=classes, count=sum(count for _, count in runs))
    assert parse_manifest(manifest.to_json(), WHERE) == manifest
    assert parse_manifest(manifest.to_json().encode(), WHERE) == manifest


def change(**values: Any) -> str:
    return json.dumps({**json.loads(make().to_json()), **values})


@pytest.mark.parametrize("key", sorted(set(json.loads(make().to_json())) - {"format_version"}))
def test_a_missing_key_is_named(key: str) -> None:
    values = json.loads(make().to_json())
    del values[key]
    with pytest.raises(FormatError, match=f"flowers/manifest.json: damaged manifest: '{key}' is missing"):
        parse_manifest(json.dumps(values), WHERE)


SHARD = {"file": FILE, "bytes": 1, "records": 1, "xxh3": "", "versions": {}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 6}, "the splits hold 5 samples, the manifest says 6"),
        ({"count": -1}, "count must be an integer that is at least 0, got -1"),
        ({"count": 5.0}, "count must be an integer that is at least 0, got 5.0"),
        ({"count": True}, "count must be an integer"),
        ({"count": "5"}, "count must be an integer"),
        ({"generation": 2**62}, "generation must be an integer"),
        ({"quarantined": None}, "quarantined must be an integer"),
        ({"splits": [{"name": "train", "start": 1, "count": 4}]}, "split train must start at 0, got 1"),
        ({"splits": [{"name": "train", "start": 0, "count": -5}]}, "count of split train must be an integer"),
        ({"splits": [{"name": 7, "start": 0, "count": 5}]}, "a split's name must be a string, got 7"),
        ({"splits": [{"name": "a", "start": 0}]}, "'count' is missing"),
        ({"splits": None}, "not iterable"),
        ({"shards": [{**SHARD, "file": "../../etc/passwd"}]}, r"a shard's file must match .*, got '../../etc/passwd'"),
        ({"shards": [{**SHARD, "file": FILE + "\n"}]}, "a shard's file must match"),
        ({"shards": [{**SHARD, "bytes": 0}]}, "must have at least 1 byte"),
        ({"shards": [{**SHARD, "bytes": -1}]}, "shard bytes must be an integer"),
        ({"shards": [{"file": FILE}]}, "missing"),
        ({"shards": [{**SHARD, "versions": ""}]}, f"versions of shard {FILE} must be texts by name, got ''"),
        ({"shards": [{**SHARD, "versions": {"numpy": 2}}]}, "must be texts by name"),
        ({"index": {"../x.npy": {"bytes": 1, "xxh3": ""}}}, r"an index file must match .*, got '../x.npy'"),
        ({"index": {"record.npy": {"bytes": "1", "xxh3": ""}}}, "index file bytes must be an integer"),
        ({"splits": [{"name": "a", "start": 0, "count": 4}, {"name": "a", "start": 4, "count": 1}]}, "must be unique"),
        ({"splits": [{"name": "\ud800", "start": 0, "count": 5}]}, r"expected text that UTF-8 can hold, got '.ud800'"),
        ({"classes": [1, 2]}, "classes must be a list of strings or null"),
        ({"classes": "cat"}, "classes must be a list of strings or null"),
        ({"classes": ["\ud800"]}, r"expected text that UTF-8 can hold, got '.ud800'"),
        ({"store": "\ud800"}, r"expected text that UTF-8 can hold, got '.ud800'"),
        ({"schema": []}, "a schema needs at least one array field"),
        ({"schema": {"image": 1}}, "a schema must be a list of fields, got dict"),
    ],
)
def test_values_that_contradict_each_other(values: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=f"flowers/manifest.json: damaged manifest: .*{message}"):
        parse_manifest(change(**values), WHERE)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe{}", b'{"format_version": 1', b"[" * 10])
def test_what_is_no_json(text: bytes) -> None:
    with pytest.raises(FormatError, match=r"flowers/manifest\.json: not valid JSON"):
        parse_manifest(text, WHERE)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "3", "null", change(format_version="1"), change(format_version=0), change(format_version=True)]
)
def test_what_is_no_manifest(text: str) -> None:
    with pytest.raises(FormatError, match=r"manifest.json: expected a precompile manifest with format_version"):
        parse_manifest(text, WHERE)


def test_a_newer_format_is_refused_with_both_numbers() -> None:
    with pytest.raises(FormatError, match=r"manifest.json: format_version 7 is newer than 1, .*upgrade precompile"):
        parse_manifest('{"format_version": 7, "everything": "else"}', WHERE)


def test_unknown_keys_are_for_later_versions() -> None:
    assert parse_manifest(change(compression="none"), WHERE) == make()
    shards = [{**shard, "tier": "cold"} for shard in json.loads(make().to_json())["shards"]]
    assert parse_manifest(change(shards=shards), WHERE) == make()


def test_names_of_classes_from_files_whose_names_are_not_utf8() -> None:
    assert parse_manifest(make(classes=("caf\udce9",)).to_json(), WHERE).classes == ("caf\udce9",)


def test_splits_by_name() -> None:
    assert make().split("val") == Split("val", 4, 1)
    with pytest.raises(ValueError, match="split must be one of train, val, got 'test'"):
        make().split("test")


@pytest.mark.parametrize("prepare", [Path.exists, Path.mkdir, Path.touch], ids=["nothing", "folder", "file"])
def test_no_dataset(tmp_path: Path, prepare: Callable[[Path], object]) -> None:
    root = tmp_path / "flowers"
    prepare(root)
    with pytest.raises(DatasetNotFoundError, match=r"flowers: no compiled dataset here \(no manifest.json\)"):
        read_manifest(root / "manifest.json")


def test_a_manifest_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(FormatError, match=rf"manifest.json: expected at most \d+ bytes, found {1 << 40}"):
        read_manifest(path)
