from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precompile.errors import FormatError
from precompile.pipeline.writers._lmdb_walk import value_offsets

Records = Callable[[list[int]], list[np.ndarray]]
Write = Callable[[str, Path, list[np.ndarray]], np.ndarray]

_PAD = 16_896


def read_values(path: Path) -> list[tuple[bytes, bytes]]:
    """As any LMDB tool reads."""
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
        return list(transaction.cursor())


def unpack_value(value: bytes) -> tuple[int, list[bytes]]:
    """The first slot of a value and its records, by the header."""
    magic, version, first_slot, count, length, table = struct.unpack_from("<4sIQQQQ", value)
    assert (magic, version) == (b"PCLM", 1)
    assert not any(value[40:48])
    lengths = [length] * count if length else list(struct.unpack_from(f"<{count}Q", value, table))
    assert (table == 0) == (length != 0)
    records, at = [], 48
    for length in lengths:
        end = at + -(-length // 64) * 64
        records.append(value[at : at + length])
        assert not any(value[at + length : end])
        at = end
    if table:
        assert table == at
        at += 8 * count
    assert len(value) == max(at, _PAD)
    assert not any(value[at:])
    return first_slot, records


@pytest.mark.parametrize(
    "lengths",
    [
        [1], [64] * 5000, [63_999] * 9, [64_000] * 3, [64_001, 5, 64_001], [100_000] * 200, [16_848], [16_849],
        [*range(1, 500)], [5_000_000, 1], [1, 1, 200_000, 1, 2, 256_000, 3],
    ],
    ids=lambda lengths: f"{len(lengths)}x{lengths[0]}..{lengths[-1]}",
)  # fmt: skip
def test_any_lmdb_tool_reads_it(lengths: list[int], tmp_path: Path, records: Records, write: Write) -> None:
    made = records(lengths)
    path = tmp_path / "shard.lmdb"
    write("lmdb", path, made)
    found: list[bytes] = []
    for key, value in read_values(path):
        first_slot, part = unpack_value(value)
        assert key == first_slot.to_bytes(8, "big")
        assert first_slot == len(found)
        if len(part) > 1:
            assert max(map(len, part)) < 64_000
            assert sum(-(-len(record) // 64) * 64 for record in part) <= 256_000
        found += part
    assert found == [record.tobytes() for record in made]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["shard.lmdb"]


def test_small_records_share_values(tmp_path: Path, records: Records, write: Write) -> None:
    write("lmdb", tmp_path / "shard", records([3072] * 1000))
    assert len(read_values(tmp_path / "shard")) == -(-1000 // (256_000 // 3072))


@pytest.mark.parametrize("lengths", [[100_000] * 500, [3072] * 5000, [5_000_000] * 4])
def test_the_file_is_about_as_large_as_its_content(
    lengths: list[int], tmp_path: Path, records: Records, write: Write
) -> None:
    write("lmdb", tmp_path / "shard", records(lengths))
    assert sum(lengths) < (tmp_path / "shard").stat().st_size < 1.04 * sum(lengths) + 65_536


def check_walk(path: Path) -> None:
    """The walk gives the places of what a cursor gives, in its order."""
    values = read_values(path)
    offsets, sizes = value_offsets(path)
    content = path.read_bytes()
    assert (offsets.dtype, sizes.dtype) == (np.int64, np.int64)
    assert sizes.tolist() == [len(value) for _, value in values]
    for (_, value), offset in zip(values, offsets.tolist()):
        assert content[offset : offset + len(value)] == value


def test_walk_of_a_written_shard(tmp_path: Path, records: Records, write: Write) -> None:
    write("lmdb", tmp_path / "shard", records([64_000] * 400))
    check_walk(tmp_path / "shard")


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 400), st.sampled_from([8, 100, 500]), st.integers(0, 2**32))
def test_walk_of_trees_of_any_depth(
    tmp_path_factory: pytest.TempPathFactory, count: int, key_bytes: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("walk") / "shard"
    write_values(path, [rng.bytes(key_bytes) for _ in range(count)], rng)
    check_walk(path)
    path.unlink()


def test_walk_of_a_tree_of_three_levels(tmp_path: Path) -> None:
    """Long keys leave room for few entries a page, hence a deep tree of few values."""
    rng = np.random.default_rng(0)
    depth = write_values(tmp_path / "shard", [bytes(490) + i.to_bytes(8, "big") for i in range(300)], rng)
    assert depth >= 3
    check_walk(tmp_path / "shard")


def write_values(path: Path, keys: list[bytes], rng: np.random.Generator) -> int:
    """Values of random sizes in several transactions, some replaced, so that pages are reused; the tree's depth."""
    with lmdb.open(str(path), subdir=False, lock=False, sync=False, map_size=1 << 28) as env:
        for start in range(0, len(keys), 50):
            with env.begin(write=True) as transaction:
                for key in [*keys[start : start + 50], *keys[:5]]:
                    transaction.put(key, rng.bytes(int(rng.integers(_PAD, 3 * _PAD))))
        return int(env.stat()["depth"])


def test_a_value_inside_a_leaf_is_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "shard"), subdir=False, lock=False) as env, env.begin(write=True) as transaction:
        transaction.put(b"key", b"small")
    with pytest.raises(FormatError, match="shard: a value lies inside a leaf page, where it is not aligned"):
        value_offsets(tmp_path / "shard")


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize("place", [16, 20])
def test_what_is_no_lmdb_file_of_data_version_1_is_refused(
    page: int, place: int, tmp_path: Path, records: Records, write: Write
) -> None:
    path = tmp_path / "shard"
    write("lmdb", path, records([100]))
    content = bytearray(path.read_bytes())
    (page_bytes,) = struct.unpack_from("<I", content, 40)
    content[page * page_bytes + place] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(FormatError, match="shard: expected LMDB data version 1, found magic"):
        value_offsets(path)
