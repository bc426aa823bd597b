"""A dataset with a damaged file is an error that names the file, or other data; never a crash."""

from __future__ import annotations

import itertools
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import precompile
from precompile.errors import FormatError, PrecompileError
from precompile.format import record
from precompile.format.generation import generation_dir
from precompile.format.index import save_column
from precompile.format.stored import Stored

Copy = Callable[[Path], Path]
_FLIPS = 60


def read_everything(root: Path) -> int:
    """As training and tools read; the number of bytes seen."""
    stored = Stored(root)
    numbers = np.arange(stored.manifest.count)
    total = int(stored.places(numbers).sum())
    for number in numbers.tolist():
        total += sum(array.nbytes for array in stored.arrays(number).values())
        total += sum(stored.array(number, spec.name).nbytes for spec in stored.schema.arrays)
        total += zlib.crc32(stored.record(number).data)
        total += len(stored.index.keys[number]) + sum(len(str(c[number])) for c in stored.index.columns.values())
    return total + len("".join(stored.index.keys))


def index_files(root: Path) -> list[Path]:
    """The files that a reader opens; the source's and the quarantine are for builds."""
    names = sorted(path.name for path in generation_dir(root, 1).glob("*.npy"))
    return [generation_dir(root, 1) / name for name in names if not name.startswith("source.")]


def replace(path: Path, content: bytes) -> None:
    """A new file in its place: shrinking one that is mapped would be a crash of its own."""
    new = path.with_name("new")
    new.write_bytes(content)
    new.replace(path)


@pytest.fixture(params=["photos", "clips"])
def dataset(request: pytest.FixtureRequest) -> Path:
    path = request.getfixturevalue(f"sharded_{request.param}")
    assert isinstance(path, Path)
    return path


def test_samples_come_back(dataset: Path) -> None:
    stored = Stored(dataset)
    assert len(stored.manifest.shards) > 1
    for number in range(stored.manifest.count):
        stored_bytes = stored.record(number)
        assert zlib.crc32(stored_bytes.data) == stored.index.crc32[number]
        arrays = stored.arrays(number)
        assert np.array_equal(record.encode(stored.schema, arrays), stored_bytes)
        for spec in stored.schema.arrays:
            assert np.array_equal(stored.array(number, spec.name), arrays[spec.name])
        place = int(stored.places(np.array([number]))[0])
        assert np.array_equal(stored.shards.view(place, len(stored_bytes)), stored_bytes)


def test_numbers_out_of_range(dataset: Path) -> None:
    stored = Stored(dataset)
    count = stored.manifest.count
    for number in (-1, count):
        with pytest.raises(IndexError, match=f"from 0 to {count - 1}, got {number}"):
            stored.record(number)
        with pytest.raises(IndexError, match=f"from 0 to {count - 1}, got "):
            stored.places(np.array([0, number]))
    with pytest.raises(KeyError):
        stored.array(0, "depth")


@pytest.mark.parametrize("damage", ["missing", "empty", "halved", "one byte less", "one byte more", "a page more"])
def test_a_damaged_index_file_is_named(dataset: Path, copy_of: Copy, damage: str) -> None:
    root = copy_of(dataset)
    for path in index_files(root):
        content = path.read_bytes()
        path.unlink()
        if damage != "missing":
            size = {"empty": 0, "halved": len(content) // 2, "one byte less": len(content) - 1}.get(damage)
            more = {"one byte more": 1, "a page more": 4096}.get(damage, 0)
            replace(path, content[:size] + bytes(more))
        with pytest.raises(FormatError, match=re.escape(path.name)):
            read_everything(root)
        replace(path, content)
    assert read_everything(root) == read_everything(dataset)


def test_index_files_renamed_over_each_other(sharded_photos: Path, copy_of: Copy) -> None:
    root = copy_of(sharded_photos)
    for source, target in itertools.permutations(index_files(root), 2):
        content = target.read_bytes()
        replace(target, source.read_bytes())
        stem = target.name.removesuffix(".npy").removesuffix(".data").removesuffix(".offsets")
        with pytest.raises(FormatError, match=re.escape(f"000001/{stem}.")):
            read_everything(root)
        replace(target, content)


@pytest.mark.parametrize("damage", ["missing", "empty", "one byte less", "one byte more", "swapped"])
def test_a_damaged_shard_is_named(sharded_clips: Path, copy_of: Copy, damage: str) -> None:
    root = copy_of(sharded_clips)
    by_size = sorted((root / "shards").iterdir(), key=os.path.getsize)
    first, second = by_size[0], by_size[-1]
    assert os.path.getsize(first) < os.path.getsize(second)
    content = first.read_bytes()
    first.unlink()
    if damage != "missing":
        new = {"empty": b"", "one byte less": content[:-1], "one byte more": content + b"\0"}
        replace(first, new.get(damage, second.read_bytes()))
    with pytest.raises(FormatError, match=f"{first.name}: (the shard is missing|expected {len(content)} bytes, found)"):
        Stored(root)


def test_no_generation_folder(dataset: Path, copy_of: Copy) -> None:
    root = copy_of(dataset)
    generation_dir(root, 1).rename(root / "elsewhere")
    with pytest.raises(FormatError, match=r"000001/record.npy: the index file is missing"):
        Stored(root)


@pytest.mark.parametrize(
    "row",
    [
        [-1, 64, None], [99, 64, None], [2**62, 64, None], [0, -64, None], [0, 65, None], [0, 2**62, None],
        [0, 64, 0], [0, 64, -1], [0, 64, 2**62], [0, 2**63 - 64, 2**63 - 1], [0, 64, 7],
        [0, (1 << 21) + 64, None],  # where the next shard is mapped
    ],
)  # fmt: skip
def test_a_place_outside_of_the_shards(dataset: Path, copy_of: Copy, row: list[int | None]) -> None:
    root = copy_of(dataset)
    places = np.array(Stored(root).index.record)
    places[1] = [places[1][axis] if value is None else value for axis, value in enumerate(row)]
    (generation_dir(root, 1) / "record.npy").unlink()
    save_column(generation_dir(root, 1), "record", places)
    stored = Stored(root)
    with pytest.raises(FormatError, match="record"):
        stored.arrays(1)
    with pytest.raises(FormatError, match="record"):
        stored.array(1, stored.schema.arrays[0].name)
    if row != [0, 64, 7]:
        with pytest.raises(FormatError, match=r"record.npy: a record does not fit its shard"):
            stored.record(1)
    if row != [0, 64, 7] or stored.schema.is_fixed:
        with pytest.raises(FormatError, match=r"record.npy: a record does not fit its shard"):
            stored.places(np.arange(3))
    assert stored.arrays(0)


def test_flipped_bytes_are_an_error_or_data(dataset: Path, copy_of: Copy) -> None:
    root = copy_of(dataset)
    rng = np.random.default_rng(0)
    refused = 0
    for path in [root / "manifest.json", *index_files(root)]:
        content = path.read_bytes()
        # the header of an .npy file is its first 128 bytes; half of the flips go there
        for place in [*rng.integers(0, min(len(content), 128), _FLIPS // 2), *rng.integers(0, len(content), _FLIPS)]:
            flipped = bytearray(content)
            flipped[place] ^= int(rng.integers(1, 256))
            replace(path, bytes(flipped))
            try:
                read_everything(root)
            except PrecompileError:
                refused += 1
        replace(path, content)
    assert refused > _FLIPS
    assert read_everything(root) == read_everything(dataset)


def test_a_flipped_byte_of_a_bmp_header_is_an_error(tmp_path: Path, photos: Path, copy_of: Copy) -> None:
    out = tmp_path / "bmp.pc"
    precompile.build(photos, out, size=16, crop=16, encoding="bmp", store="flat", workers=1, quiet=True)
    (shard,) = (out / "shards").iterdir()
    content = bytearray(shard.read_bytes())
    shard_number, offset, _ = Stored(out).index.record[5].tolist()
    assert shard_number == 0
    content[offset + 18] ^= 1
    replace(shard, bytes(content))
    stored = Stored(out)
    with pytest.raises(FormatError, match="does not have the header of a 16x16 image with 3 channels"):
        stored.arrays(5)
    assert stored.arrays(6)
