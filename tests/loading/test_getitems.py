"""__getitems__ and collate: one gather for a whole batch, and samples that are as if read one by one."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from precompile import CompiledDataset
from precompile.format.schema import FieldSpec

pytestmark = pytest.mark.filterwarnings("error")

Written = tuple[Path, list[dict[str, Any]]]
FORMS: list[Any] = [None, "image", ("image", "label"), ("note", "image"), "label", ("label", "note")]


def as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: as_lists(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_lists(part) for part in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("fields", FORMS, ids=str)
@pytest.mark.parametrize("indices", [[3], [0, 49, 7, 7, -1], list(range(50)), []], ids=len)
def test_samples_are_as_if_read_alone(images: Written, fields: Any, indices: list[int]) -> None:
    dataset = CompiledDataset(images[0], fields=fields)
    samples = dataset.__getitems__(indices)
    assert isinstance(samples, list)
    alone = [dataset[index] for index in indices]
    assert as_lists(samples) == as_lists(alone)
    for sample, other in zip(samples, alone):
        assert type(sample) is type(other)
        if fields is None:
            assert [type(part) for part in sample.values()] == [type(part) for part in other.values()]


@pytest.mark.parametrize("encoding", ["raw", "raw_hwc", "bmp"])
def test_a_batch_is_not_copied_again(tmp_path: Path, write_dataset: Callable[..., Any], encoding: str) -> None:
    write_dataset(tmp_path / "x.pc", [FieldSpec("image", "uint8", (3, 5, 7), encoding)], 20)
    dataset = CompiledDataset(tmp_path / "x.pc", fields="image")
    samples = dataset.__getitems__([4, 2, 9])
    batch = dataset.collate(samples)
    assert batch.data_ptr() == samples[0].data_ptr()
    assert torch.equal(batch, torch.stack([dataset[index] for index in (4, 2, 9)]))
    assert batch.stride() == dataset.collate([dataset[index] for index in (4, 2, 9)]).stride()
    assert torch.equal(default_collate(samples), batch)


@pytest.mark.parametrize("fields", [None, "image", ("image", "label")], ids=str)
def test_what_was_changed_is_in_the_batch(images: Written, fields: Any) -> None:
    dataset = CompiledDataset(images[0], fields=fields)
    new = torch.full((3, 8, 8), 9, dtype=torch.uint8)

    def image_of(value: Any) -> torch.Tensor:
        return value["image"] if fields is None else value if isinstance(fields, str) else value[0]

    samples = dataset.__getitems__([1, 2, 3])
    image_of(samples[1])[...] = 9
    assert torch.equal(image_of(dataset.collate(samples))[1], new)
    samples = dataset.__getitems__([1, 2, 3])
    if fields is None:
        samples[1]["image"] = new
    else:
        samples[1] = new if isinstance(fields, str) else (new, samples[1][1])
    assert torch.equal(image_of(dataset.collate(samples))[1], new)
    samples = dataset.__getitems__([1, 2, 3])
    del samples[0]
    assert len(image_of(dataset.collate(samples))) == 2
    samples.reverse()
    assert torch.equal(image_of(dataset.collate(samples))[0], image_of(dataset[3]))


@pytest.mark.parametrize("change", [
    lambda image: image.transpose_(1, 2), lambda image: image.unsqueeze_(0), lambda image: image.resize_(3, 4, 4),
    lambda image: setattr(image, "data", image.data.float() / 2), lambda image: image.set_(torch.ones(3, 8, 8).byte()),
])  # fmt: skip
@pytest.mark.parametrize("fields", ["image", ("label", "image")], ids=str)
def test_a_tensor_of_another_form_is_in_the_batch(images: Written, fields: Any, change: Any) -> None:
    dataset = CompiledDataset(images[0], fields=fields)
    samples = dataset.__getitems__([1, 2, 3])
    tensors = samples if isinstance(fields, str) else [image for _, image in samples]
    for tensor in tensors:
        change(tensor)
    batch = dataset.collate(samples)
    assert torch.equal(batch if isinstance(fields, str) else batch[1], torch.stack(list(tensors)))


def test_renamed_parts_are_renamed_in_the_batch(images: Written) -> None:
    dataset = CompiledDataset(images[0])
    samples = dataset.__getitems__([1, 2])
    for sample in samples:
        sample["image"], sample["label"] = sample["label"], sample["image"]
    assert dataset.collate(samples)["label"].shape == (2, 3, 8, 8)


def test_a_copy_is_a_plain_list(images: Written) -> None:
    samples = CompiledDataset(images[0], fields="image").__getitems__([1, 2, 3])
    for copied in (copy.copy(samples), copy.deepcopy(samples), pickle.loads(pickle.dumps(samples)), samples[:2]):
        assert type(copied) is list
        assert as_lists(copied) == as_lists(samples)[: len(copied)]


def test_kept_samples_and_batches_stay(images: Written) -> None:
    dataset = CompiledDataset(images[0], fields="image")
    expected = [dataset[index] for index in range(50)]
    batches = [dataset.collate(dataset.__getitems__(list(range(start, start + 10)))) for start in range(0, 50, 10)]
    samples = [dataset.__getitems__([index, 0])[0] for index in range(50)]
    assert torch.equal(torch.cat(batches), torch.stack(expected))
    assert torch.equal(torch.stack(samples), torch.stack(expected))


def test_memory_is_reused(images: Written) -> None:
    dataset = CompiledDataset(images[0], fields="image")
    addresses = {dataset.collate(dataset.__getitems__(list(range(20)))).data_ptr() for _ in range(10)}
    assert len(addresses) == 1


def test_threads_do_not_share_buffers(images: Written) -> None:
    dataset = CompiledDataset(images[0], fields="image")
    expected = torch.stack([dataset[index] for index in range(50)])
    wrong: list[int] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            indices = rng.integers(0, 50, 20).tolist()
            if not torch.equal(dataset.collate(dataset.__getitems__(indices)), expected[indices]):
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_dataset_goes_with_its_last_reference(images: Written) -> None:
    dataset = CompiledDataset(images[0], fields="image")
    dataset.__getitems__([1, 2])
    gone = weakref.ref(dataset)
    gc.disable()
    try:
        del dataset
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("fields", ["image", ("image", "label"), None], ids=str)
def test_a_dataloader_in_this_process(images: Written, fields: Any) -> None:
    dataset = CompiledDataset(images[0], fields=fields)
    ours = DataLoader(dataset, 8, collate_fn=dataset.collate)
    assert [as_lists(batch) for batch in ours] == [as_lists(batch) for batch in DataLoader(dataset, 8)]
