"""Loader(workers=N): the same batches as without, whatever the workers are given to do."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import worker_functions
from same import assert_same
from torch.utils.data import Subset

from precompile import CompiledDataset, Loader, Pad, Padded, RandomCrop, RandomTimeWindow
from precompile.format.schema import FieldSpec

Images = tuple[Path, list[dict[str, Any]]]
in_workers = functools.partial(Loader, workers=2, start_method="fork")


def assert_as_without(dataset: Any, *arguments: Any, **options: Any) -> None:
    """All batches of two epochs, kept until the end."""
    with_workers, without = in_workers(dataset, *arguments, **options), Loader(dataset, *arguments, **options)
    for _ in range(2):
        assert_same(list(with_workers), list(without))


@pytest.mark.parametrize("fields", [None, "image", ("image", "label"), ("note", "label", "image"), ("label", "note")])
@pytest.mark.parametrize("split", [None, "val"])
def test_samples_as_they_are_stored(images: Images, fields: Any, split: str | None) -> None:
    assert_as_without(CompiledDataset(images[0], fields=fields, split=split), 7, shuffle=True)


@pytest.mark.parametrize("name", ["same", "in_place", "as_float", "sometimes_new", "smaller"])
@pytest.mark.parametrize("fields", [("image", "label"), None, "image"])
def test_transforms(images: Images, name: str, fields: Any) -> None:
    dataset = CompiledDataset(images[0], fields=fields, transform=getattr(worker_functions, name))
    assert_as_without(dataset, 7, shuffle=True)
    one_by_one = [dataset[index] for index in Loader(dataset, 7, seed=3, shuffle=True).sampler]
    batches = list(in_workers(dataset, 7, seed=3, shuffle=True))
    assert_same(batches[0], dataset.collate(one_by_one[:7]))
    assert_same(batches[-1], dataset.collate(one_by_one[-1:]))


def test_a_transform_that_makes_something_else(images: Images) -> None:
    assert_as_without(CompiledDataset(images[0], fields=("image", "label"), transform=worker_functions.as_mapping), 7)


def test_transforms_by_field(images: Images) -> None:
    transform = {"image": worker_functions.as_float, "label": float, "note": len}
    assert_as_without(CompiledDataset(images[0], transform=transform), 7, shuffle=True)


@pytest.mark.parametrize("collate", [worker_functions.listed, worker_functions.text_and_tensors])
@pytest.mark.parametrize("transform", [None, worker_functions.same])
def test_a_collate_function(images: Images, collate: Callable[..., Any], transform: Any) -> None:
    dataset = CompiledDataset(images[0], fields=("image", "label"), transform=transform)
    assert_as_without(dataset, 7, shuffle=True, collate=collate)


def test_samples_of_varying_shape(spectrograms: Images) -> None:
    dataset = CompiledDataset(spectrograms[0], fields=("spectrogram", "label"))
    assert_as_without(dataset, 7, shuffle=True)
    assert_as_without(dataset, 7, collate=Pad(-1.0, multiple_of=4))
    assert_as_without(dataset, batch_frames=24, shuffle=True)
    assert_as_without(dataset, 4, windows=RandomTimeWindow(5))
    (padded, _), *_ = in_workers(dataset, 7)
    assert isinstance(padded, Padded)


def test_windows(images: Images) -> None:
    assert_as_without(CompiledDataset(images[0], fields=("image", "label")), 7, shuffle=True, windows=RandomCrop(5))


@pytest.mark.parametrize("encoding", ["raw_hwc", "bmp"])
def test_encodings(tmp_path: Path, write_dataset: Callable[..., Any], encoding: str) -> None:
    write_dataset(tmp_path / "x.pc", [FieldSpec("image", "uint8", (3, 6, 5), encoding)], 20)
    assert_as_without(CompiledDataset(tmp_path / "x.pc", fields="image"), 6)
    assert_as_without(CompiledDataset(tmp_path / "x.pc", fields="image", transform=worker_functions.same), 6)


def test_subsets_samplers_and_leftovers(images: Images) -> None:
    dataset = CompiledDataset(images[0], fields=("image", "label"), transform=worker_functions.as_float)
    assert_as_without(Subset(dataset, [3, 1, 4, 1, 5, 9, 2, 6]), 3)
    assert_as_without(dataset, 8, sampler=[5, -1, 5, 0] * 5, drop_last=True)
    assert_as_without(dataset, sampler=[[1, 2, 3], [4], [5, 6]])
    assert_as_without(dataset, 4, prefetch=0)
    assert_as_without(dataset, 4, prefetch=20)
    assert_as_without(Subset(dataset, []), 4)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_random_numbers_are_those_of_seed_epoch_and_batch(images: Images, workers: int) -> None:
    dataset = CompiledDataset(images[0], fields="image", transform=worker_functions.noisy)
    expected = list(in_workers(dataset, 8, shuffle=True, seed=5))
    loader = Loader(dataset, 8, shuffle=True, seed=5, workers=workers, start_method="fork")
    assert_same(list(loader), expected)
    drawn = torch.cat([batch[:, -1] for batch in expected])
    assert len(drawn.unique()) == len(dataset)
    assert not torch.equal(torch.cat([batch[:, -1] for batch in loader]).sort()[0], drawn.sort()[0])  # another epoch
    other = torch.cat([batch[:, -1] for batch in in_workers(dataset, 8, shuffle=True, seed=6)])
    assert not set(other.tolist()) & set(drawn.tolist())


def test_an_epoch_goes_on_where_it_stopped(images: Images) -> None:
    dataset = CompiledDataset(images[0], fields="image", transform=worker_functions.noisy)
    whole = list(in_workers(dataset, 8, shuffle=True))
    loader = in_workers(dataset, 8, shuffle=True)
    stream = iter(loader)
    first = [next(stream) for _ in range(3)]
    state = loader.state_dict()
    stream.close()
    other = Loader(dataset, 8, shuffle=True, workers=1, start_method="fork")
    other.load_state_dict(state)
    assert_same([*first, *other], whole)


def test_workers_stay_from_epoch_to_epoch_and_through_a_broken_one(images: Images) -> None:
    dataset = CompiledDataset(images[0], fields="image", transform=worker_functions.same)
    loader = in_workers(dataset, 8, sampler=range(50))
    expected = list(loader)
    pids = _pids(loader)
    stream = iter(loader)
    next(stream)
    del stream
    assert_same(list(loader), expected)
    assert _pids(loader) == pids
    assert len(set(pids)) == 2


def test_two_iterations_at_once(images: Images) -> None:
    dataset = CompiledDataset(images[0], fields="image", transform=worker_functions.same)
    loader = in_workers(dataset, 8)
    for one, other in zip(loader, loader):
        assert torch.equal(one, other)


def test_a_device_gets_what_workers_make(images: Images) -> None:
    dataset = CompiledDataset(images[0], fields=("image", "label"), transform=worker_functions.as_float)
    found = list(in_workers(dataset, 7, device="cpu", shuffle=True))
    assert_same(found, list(Loader(dataset, 7, shuffle=True)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers must be an integer of at least 0, got workers=-1"),
        ({"workers": 1.5}, "workers must be an integer of at least 0, got workers=1.5"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0, or None for ever, got timeout=0"),
        ({"timeout": "1"}, "timeout must be a number of seconds above 0, or None for ever, got timeout='1'"),
        ({"workers": 1, "start_method": "thread"}, "start_method must be one of .*, got start_method='thread'"),
    ],
)
def test_wrong_arguments(images: Images, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Loader(CompiledDataset(images[0]), 4, **options)


def test_a_dataset_on_a_device_takes_no_workers(images: Images) -> None:
    resident = CompiledDataset(images[0], fields="image").to_tensors("cpu")
    with pytest.raises(ValueError, match="it takes no workers"):
        Loader(resident, 4, workers=1)


def _pids(loader: Loader) -> list[int]:
    return [pid for _, pid in loader.watched_processes()]


def test_a_loader_whose_workers_run_is_pickled_and_copied_without_them(images: Images) -> None:
    dataset = CompiledDataset(images[0], fields=("image", "label"), transform=worker_functions.as_float)
    loader = in_workers(dataset, 7, sampler=range(50))
    expected = list(loader)
    for other in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader), copy.copy(loader)):
        assert_same(list(other), expected)
    assert len(loader.watched_processes()) == 2
