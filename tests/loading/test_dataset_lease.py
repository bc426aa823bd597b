"""A dataset that is open keeps its generation, for itself and for workers that start later."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import precompile.format.stored as stored_module
from precompile import CompiledDataset, Loader
from precompile.errors import DatasetNotFoundError, FormatError
from precompile.format.generation import generation_dir, list_generations, read_generation
from precompile.format.lease import Lease, claim, is_in_use, take_lease
from precompile.format.schema import FieldSpec

pytestmark = pytest.mark.filterwarnings("error")

REPOSITORY = Path(__file__).resolve().parents[2]
FIELDS = (FieldSpec("image", "uint8", (1, 4, 4)), FieldSpec("label", "int64", ()))
COUNT = 10
Write = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def first(tmp_path: Path, write_dataset: Write) -> tuple[Path, list[dict[str, Any]]]:
    """(root, samples) of a dataset with generation 1."""
    return tmp_path / "x.pc", write_dataset(tmp_path / "x.pc", FIELDS, COUNT, seed=1, generation=1, num_shards=2)


def remove(root: Path, generation: int) -> bool:
    """What a prune does: remove a generation, and the shards that are its own, unless somebody reads it."""
    directory = generation_dir(root, generation)
    hidden = directory.with_name(f".{directory.name}.tmp")
    files = {shard.file for shard in read_generation(root, generation).shards}
    with claim(directory) as alone:
        if not alone:
            return False
        directory.rename(hidden)
    shutil.rmtree(hidden)
    for file in files:
        (root / "shards" / file).unlink()
    return True


def assert_same(batches: list[Any], samples: list[dict[str, Any]]) -> None:
    images = torch.cat([batch["image"] for batch in batches])
    assert np.array_equal(images, np.stack([sample["image"] for sample in samples]))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_later_epochs_read_the_generation_that_was_opened(
    first: tuple[Path, Any], write_dataset: Write, method: str
) -> None:
    root, samples = first
    loader = DataLoader(CompiledDataset(root), 4, num_workers=1, multiprocessing_context=method)
    assert_same(list(loader), samples)
    write_dataset(root, FIELDS, COUNT, seed=2, generation=2)
    assert not remove(root, 1)
    assert_same(list(loader), samples)
    assert not remove(root, 1)
    del loader
    gc.collect()
    assert remove(root, 1)
    with pytest.raises(DatasetNotFoundError, match="no generation 1; there are: 2"):
        CompiledDataset(root, generation=1)


HOLDERS: dict[str, Callable[[CompiledDataset], Any]] = {
    "a copy": copy.copy,
    "a deep copy": copy.deepcopy,
    "a deep copy of what holds it": lambda dataset: copy.deepcopy(Subset(dataset, [1, 2])),
    "a Loader": lambda dataset: Loader(dataset, 4),
    "an epoch": lambda dataset: iter(Loader(dataset, 4)),
    "what was pickled and used": lambda dataset: (
        lambda clone: (clone[0], clone))(pickle.loads(pickle.dumps(dataset))),
}  # fmt: skip


@pytest.mark.parametrize("holder", HOLDERS)
def test_it_is_kept_by(first: tuple[Path, Any], write_dataset: Write, holder: str) -> None:
    root = first[0]
    held = [HOLDERS[holder](CompiledDataset(root))]
    gc.collect()
    write_dataset(root, FIELDS, COUNT, seed=2, generation=2)
    assert not remove(root, 1)
    held.clear()
    gc.collect()
    assert remove(root, 1)


def test_copies_share_the_opened_files(first: tuple[Path, Any]) -> None:
    dataset = CompiledDataset(first[0], transform={"image": torch.neg})
    for clone in (copy.copy(dataset), copy.deepcopy(dataset)):
        assert clone.stored is dataset.stored
        assert torch.equal(clone[3]["image"], dataset[3]["image"])
        clone.transform = None
        assert not torch.equal(clone[3]["image"], dataset[3]["image"])


def test_two_datasets_have_a_lease_each(first: tuple[Path, Any]) -> None:
    root, directory = first[0], generation_dir(first[0], 1)
    one, two = CompiledDataset(root), CompiledDataset(root, fields="image")
    assert is_in_use(directory)
    del one
    gc.collect()
    assert is_in_use(directory)
    assert len(two) == COUNT
    del two
    gc.collect()
    assert not is_in_use(directory)


def test_a_pickled_dataset_opens_no_file_to_describe_itself(first: tuple[Path, Any]) -> None:
    root = first[0]
    clone = pickle.loads(pickle.dumps(CompiledDataset(root, split="all")))
    gc.collect()
    assert repr(clone) == f"CompiledDataset({str(root)!r}, split='all'): not opened in this process"
    assert not is_in_use(generation_dir(root, 1))
    assert len(clone) == COUNT
    assert repr(clone) == f"CompiledDataset({str(root)!r}, split='all'): 10 samples of image, label"


READ_UNTIL_KILLED = """
import sys
from precompile import CompiledDataset
dataset = CompiledDataset(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_has_no_lease(first: tuple[Path, Any], number: int) -> None:
    command = [sys.executable, "-c", READ_UNTIL_KILLED, str(first[0])]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=REPOSITORY) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        assert is_in_use(generation_dir(first[0], 1))
        reader.send_signal(number)
        assert reader.wait() == -number
        assert not is_in_use(generation_dir(first[0], 1))


LEASE_OF_NOBODY = """
import os, sys
from precompile import CompiledDataset
from precompile.format.lease import is_in_use
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
directory = CompiledDataset(sys.argv[1]).stored.index.directory
dataset = CompiledDataset(sys.argv[1])
print(os.access(directory / "manifest.json", os.W_OK), is_in_use(directory))
"""


def test_a_read_only_directory(read_only: Path) -> None:
    command = [sys.executable, "-c", LEASE_OF_NOBODY, str(read_only)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.split() == ["False", "True"], done.stderr


@pytest.fixture
def replaced_on_opening(
    first: tuple[Path, Any], write_dataset: Write, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """The samples of generation 2, which replaces 1 when a reader of 1 is between its manifest and its files."""
    root = first[0]
    second: list[dict[str, Any]] = []

    def too_late(directory: Path) -> Lease | None:
        monkeypatch.setattr(stored_module, "take_lease", take_lease)
        second.extend(write_dataset(root, FIELDS, COUNT, seed=2, generation=2))
        assert remove(root, 1)
        return take_lease(directory)

    monkeypatch.setattr(stored_module, "take_lease", too_late)
    return second


def test_the_current_generation_is_replaced_while_it_is_opened(
    first: tuple[Path, Any], replaced_on_opening: list[dict[str, Any]]
) -> None:
    dataset = CompiledDataset(first[0])
    assert replaced_on_opening
    assert dataset.manifest.generation == 2
    assert_same([dataset.collate(list(dataset))], replaced_on_opening)
    assert not remove(first[0], 2)


def test_a_named_generation_is_removed_while_it_is_opened(
    first: tuple[Path, Any], replaced_on_opening: list[dict[str, Any]]
) -> None:
    with pytest.raises(DatasetNotFoundError, match="no generation 1; there are: 2"):
        CompiledDataset(first[0], generation=1)
    assert list_generations(first[0]) == [2]


def test_a_damaged_generation_is_not_opened_again_and_again(
    first: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(stored_module, "take_lease", opened.append)
    (generation_dir(first[0], 1) / "crc32.npy").unlink()
    with pytest.raises(FormatError, match=r"crc32.npy: the index file is missing"):
        CompiledDataset(first[0])
    assert len(opened) == 1
    shutil.rmtree(generation_dir(first[0], 1))
    with pytest.raises(FormatError, match=r"record.npy: the index file is missing"):
        CompiledDataset(first[0])


@pytest.mark.parametrize("damage", [Path.unlink, Path.mkdir], ids=["missing", "a folder"])
def test_reading_without_the_manifest_of_the_generation(
    first: tuple[Path, Any], damage: Callable[[Path], object]
) -> None:
    """There is nothing to lock, and nothing else that a reader of the current generation needs."""
    root, samples = first
    manifest = generation_dir(root, 1) / "manifest.json"
    manifest.unlink()
    if damage is Path.mkdir:
        manifest.mkdir()
    assert_same(list(DataLoader(CompiledDataset(root), 4)), samples)
