"""CompiledDataset under torch's own DataLoader, with every way of starting workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from precompile import CompiledDataset, Padded

pytestmark = pytest.mark.filterwarnings("error")

Written = tuple[Path, list[dict[str, Any]]]
METHODS = ("fork", "forkserver", "spawn")


def shuffled(dataset: CompiledDataset, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, 8, shuffle=True, generator=torch.Generator().manual_seed(4), **options)


def assert_same_batches(got: Sequence[Any], expected: Sequence[Any]) -> None:
    for batch, other in zip(got, expected, strict=True):
        assert batch.keys() == other.keys()
        assert all(torch.equal(batch[name], other[name]) for name in ("image", "label"))
        assert list(batch["note"]) == list(other["note"])


@pytest.mark.parametrize("ours", [False, True], ids=["default collate", "our collate"])
@pytest.mark.parametrize("method", METHODS)
def test_workers_give_the_same_samples(images: Written, method: str, ours: bool) -> None:
    dataset = CompiledDataset(images[0])
    collate = {"collate_fn": dataset.collate} if ours else {}
    alone = list(shuffled(dataset, **collate))
    notes = [note for batch in alone for note in batch["note"]]
    assert sorted(notes) == sorted(dataset.column("note"))
    for batch in alone:
        for image, note in zip(batch["image"], batch["note"]):
            assert np.array_equal(image, next(s["image"] for s in images[1] if s["note"] == note))
    assert_same_batches(list(shuffled(dataset, num_workers=2, multiprocessing_context=method, **collate)), alone)


@pytest.mark.parametrize("method", METHODS)
def test_persistent_workers_read_epoch_after_epoch(images: Written, method: str) -> None:
    dataset = CompiledDataset(images[0])
    kept = shuffled(dataset, num_workers=2, persistent_workers=True, multiprocessing_context=method)
    orders = []
    for _ in range(3):
        samples = [sample for batch in kept for sample in zip(batch["note"], batch["image"])]
        orders.append([note for note, _ in samples])
        expected = {sample["note"]: sample["image"] for sample in images[1]}
        assert sorted(orders[-1]) == sorted(expected)
        assert all(np.array_equal(image, expected[note]) for note, image in samples)
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_varying_shapes_are_padded(spectrograms: Written, workers: int) -> None:
    root, samples = spectrograms
    dataset = CompiledDataset(root, fields=("spectrogram", "label"))
    context = "fork" if workers else None
    loader = DataLoader(dataset, 7, num_workers=workers, collate_fn=dataset.collate, multiprocessing_context=context)
    seen = 0
    for padded, label in loader:
        assert isinstance(padded, Padded)
        assert padded.data.shape == (len(label), 4, int(padded.lengths.max()))
        for row, length in zip(padded.data, padded.lengths.tolist()):
            assert np.array_equal(row[:, :length], samples[seen]["spectrogram"])
            assert not row[:, length:].any()
            seen += 1
    assert seen == 30


def test_a_batch_is_fetched_by_one_call(images: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[int]] = []
    plain = CompiledDataset.__getitems__
    monkeypatch.setattr(
        CompiledDataset, "__getitems__", lambda self, indices: calls.append(indices) or plain(self, indices)
    )
    batches = list(DataLoader(CompiledDataset(images[0], fields=("image", "label")), 20))
    assert [len(image) for image, _ in batches] == [20, 20, 10]
    assert calls == [list(range(20)), list(range(20, 40)), list(range(40, 50))]


def test_collate_keeps_the_forms(images: Written) -> None:
    root = images[0]
    for fields, kind in ((None, dict), ("image", torch.Tensor), (("label", "note"), tuple), ("note", list)):
        dataset = CompiledDataset(root, fields=fields)
        batch = dataset.collate(dataset.__getitems__([0, 1, 2]))
        assert type(batch) is kind
    labels, notes = CompiledDataset(root, fields=("label", "note")).collate([(1, "a"), (2, "b")])
    assert labels.dtype == torch.int64
    assert labels.tolist() == [1, 2]
    assert notes == ["a", "b"]


def test_collate_refuses_shapes_that_differ(images: Written) -> None:
    dataset = CompiledDataset(images[0], fields="image")
    with pytest.raises(ValueError, match=r"samples of one batch must have one shape, got \[\(1,\), \(2,\)\]"):
        dataset.collate([torch.zeros(1), torch.zeros(2)])


@pytest.mark.parametrize("value", [torch.arange(3.0, requires_grad=True), torch.ones(2, dtype=torch.bfloat16)])
def test_collate_of_tensors_that_numpy_lacks(images: Written, value: torch.Tensor) -> None:
    dataset = CompiledDataset(images[0], fields="image", transform=lambda image: value)
    batch = dataset.collate([dataset[0], dataset[1]])
    assert torch.equal(batch, torch.stack([value, value]))
    assert batch.requires_grad == value.requires_grad
