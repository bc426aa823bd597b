"""Entries of older generations, entries in use, and what is pickled."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builds import REPOSITORY

from precompile import CompiledDataset
from precompile.errors import DatasetNotFoundError
from precompile.format.generation import generation_dir
from precompile.format.lease import claim
from precompile.format.schema import FieldSpec
from precompile.loading.caching.directory import CacheDirectory
from precompile.loading.caching.dropping import drop
from precompile.loading.caching.entries import list_entries
from precompile.loading.caching.listing import survey
from precompile.loading.caching.options import Cache
from precompile.loading.caching.staging import add
from precompile.loading.caching.users import users_of

Write = Callable[..., list[dict[str, Any]]]
FIELDS = (FieldSpec("image", "uint8", (1, 4, 4)), FieldSpec("label", "int64", ()))


@pytest.fixture
def make(tmp_path: Path, write_dataset: Write) -> Callable[[int], Path]:
    """make(n): the dataset, with generation n as the current one."""

    def write(generation: int) -> Path:
        write_dataset(tmp_path / "x.pc", FIELDS, 10, splits={"a": 6, "b": 4}, seed=generation, generation=generation)
        return tmp_path / "x.pc"

    return write


def remove_generation(root: Path, generation: int) -> None:
    """As a prune does."""
    with claim(generation_dir(root, generation)) as is_ours:
        assert is_ours
        shutil.rmtree(generation_dir(root, generation))
    for path in (root / "shards").glob(f"{generation:016x}*"):
        path.unlink()


def staged(home: Path) -> list[int]:
    return sorted(entry.facts.generation for entry in list_entries(CacheDirectory(home)) if entry.facts)


def text(dataset: CompiledDataset) -> str:
    return str([dataset[number] for number in range(len(dataset))])


def test_a_new_generation_replaces_the_old_entry(make: Callable[[int], Path], home: Path, left_in: Any) -> None:
    root = make(1)
    for wanted in ({"split": "a"}, {"split": "b"}, {}):
        add(root, Cache(directory=home), **wanted)
    gc.collect()
    make(2)
    assert [listed.state for listed in survey(CacheDirectory(home))] == ["stale"] * 3
    cached = CompiledDataset(root, cache=home)
    assert text(cached) == text(CompiledDataset(root))
    assert staged(home) == [2]
    assert left_in(home) == {cached.stored.root.name, f"{cached.stored.root.name}.lock"}


def test_an_old_entry_in_use_stays(make: Callable[[int], Path], home: Path) -> None:
    root = make(1)
    old = CompiledDataset(root, cache=home)
    before = text(old)
    make(2)
    new = CompiledDataset(root, cache=home)
    assert staged(home) == [1, 2]
    assert (text(old), old.manifest.generation, new.manifest.generation) == (before, 1, 2)
    del old
    gc.collect()
    make(3)
    assert CompiledDataset(root, cache=home).manifest.generation == 3
    assert staged(home) == [2, 3]
    assert new.manifest.generation == 2


def test_an_older_generation_by_choice(make: Callable[[int], Path], home: Path) -> None:
    root = make(1)
    make(2)
    make(3)
    add(root, Cache(directory=home))
    add(root, Cache(directory=home), generation=2)
    assert staged(home) == [2, 3]
    cached = CompiledDataset(root, generation=1, cache=home)
    assert text(cached) == text(CompiledDataset(root, generation=1))
    assert staged(home) == [1, 3]
    with pytest.raises(DatasetNotFoundError, match="no generation 9; there are: 1, 2, 3"):
        CompiledDataset(root, generation=9, cache=home)


def test_a_dataset_that_was_built_again_from_nothing(make: Callable[[int], Path], home: Path, tmp_path: Path,
                                                     write_dataset: Write) -> None:  # fmt: skip
    root = make(1)
    add(root, Cache(directory=home))
    shutil.rmtree(root)
    write_dataset(root, FIELDS, 7, seed=5, generation=1)
    assert text(CompiledDataset(root, cache=home)) == text(CompiledDataset(root))
    assert len(list_entries(CacheDirectory(home))) == 1


def test_other_datasets_are_left_alone(make: Callable[[int], Path], home: Path, images: Any) -> None:
    root = make(1)
    add(images[0], Cache(directory=home))
    add(root, Cache(directory=home))
    make(2)
    add(root, Cache(directory=home))
    assert staged(home) == [1, 2]


def test_what_was_pickled_opens_after_its_generation_was_removed(make: Callable[[int], Path], home: Path) -> None:
    root = make(1)
    cached = CompiledDataset(root, split="b", cache=home)
    expected, pickled = text(cached), pickle.dumps(cached)
    make(2)
    del cached
    gc.collect()
    remove_generation(root, 1)
    assert text(pickle.loads(pickled)) == expected
    shutil.rmtree(root)
    assert text(pickle.loads(pickled)) == expected


def test_what_was_pickled_is_staged_again_when_its_entry_has_gone(make: Callable[[int], Path], home: Path) -> None:
    root = make(1)
    cached = CompiledDataset(root, split="b", cache=home)
    expected, pickled, entry = text(cached), pickle.dumps(cached), cached.stored.root
    make(2)
    del cached
    gc.collect()
    assert drop(CacheDirectory(home), entry.name).stays == ""
    again = pickle.loads(pickled)
    assert text(again) == expected
    assert again.stored.root == entry
    shutil.rmtree(home)
    assert text(pickle.loads(pickled)) == expected
    shutil.rmtree(home)
    del again
    gc.collect()
    remove_generation(root, 1)
    with pytest.raises(DatasetNotFoundError, match="no generation 1; there are: 2"):
        len(pickle.loads(pickled))


def test_a_generation_that_is_removed_while_another_is_committed(
    make: Callable[[int], Path], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading which generation is current and opening it."""
    from precompile.loading.caching import entries

    root, read = make(1), entries.read_generation

    def read_too_early(path: Path, generation: int | None) -> Any:
        manifest = read(path, generation)
        if manifest.generation == 1:
            make(2)
            remove_generation(root, 1)
        return manifest

    monkeypatch.setattr(entries, "read_generation", read_too_early)
    cached = CompiledDataset(root, cache=home)
    assert cached.manifest.generation == 2
    assert staged(home) == [2]


def test_the_source_is_kept_while_it_is_copied(
    make: Callable[[int], Path], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from precompile.loading.caching import copying

    root, plain, seen = make(1), copying.Meter.add, []

    def add_and_look(meter: copying.Meter, num_bytes: int) -> None:
        with claim(generation_dir(root, 1)) as is_ours:
            seen.append(is_ours)
        plain(meter, num_bytes)

    monkeypatch.setattr(copying.Meter, "add", add_and_look)
    add(root, Cache(directory=home))
    assert set(seen) == {False}


def test_an_entry_in_use_is_not_dropped(make: Callable[[int], Path], home: Path) -> None:
    cached = CompiledDataset(make(1), cache=home)
    place, name = CacheDirectory(home), cached.stored.root.name
    kept = drop(place, name)
    assert (kept.freed_bytes, kept.stays, kept.users) == (0, f"in use by pid {os.getpid()}", (os.getpid(),))
    expected = text(cached)
    forced = drop(place, name, force=True)
    assert (forced.stays, forced.users) == ("", (os.getpid(),))
    assert forced.freed_bytes > 0
    assert not cached.stored.root.exists()
    assert text(cached) == expected
    assert drop(place, name).stays == "it is gone already"


READER = """
import sys
from pathlib import Path
from precompile.format.stored import Stored
stored = Stored(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def test_users_are_named(make: Callable[[int], Path], home: Path) -> None:
    entry, _ = add(make(1), Cache(directory=home))
    assert users_of(entry.generation_dir) == []
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, entry.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        [listed] = survey(CacheDirectory(home))
        assert (listed.users, listed.is_in_use, listed.state) == ((reader.pid,), True, "current")
    finally:
        reader.kill()
        reader.communicate()
    [listed] = survey(CacheDirectory(home))
    assert (listed.users, listed.is_in_use) == ((), False)


def open_unless_dropped(root: Path, home: Path, split: str | None) -> CompiledDataset | None:
    try:
        return CompiledDataset(root, cache=home, split=split)
    except DatasetNotFoundError as error:
        if "each time dropped before it was opened" not in str(error):
            raise
        return None


def test_dropping_all_the_time_while_others_open(make: Callable[[int], Path], home: Path) -> None:
    root = make(1)
    expected = {split: text(CompiledDataset(root, split=split)) for split in ("a", None)}
    done, dropped = threading.Event(), []
    place = CacheDirectory(home)

    def drop_always() -> None:
        while not done.is_set():
            dropped.extend(item for name in place.entries() if not (item := drop(place, name)).stays)

    thread = threading.Thread(target=drop_always)
    thread.start()
    try:
        for number in range(8):
            split = "a" if number % 2 else None
            while (cached := open_unless_dropped(root, home, split)) is None:
                pass
            assert text(cached) == expected[split]
            del cached
            gc.collect()
    finally:
        done.set()
        thread.join(60)
    assert dropped


def test_when_it_was_used_last(make: Callable[[int], Path], home: Path) -> None:
    root = make(1)
    entry, _ = add(root, Cache(directory=home))
    os.utime(entry.path / "used", (1e9, 1e9))
    assert entry.used_at == 1e9
    cached = CompiledDataset(root, cache=home)
    first = entry.used_at
    assert first > 1.5e9
    os.utime(entry.path / "used", (1e9, 1e9))
    len(pickle.loads(pickle.dumps(cached)))
    assert entry.used_at > 1.5e9
