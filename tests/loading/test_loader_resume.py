"""Loader: an epoch that goes on where another process stopped repeats and skips nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from written import write

from precompile import BlockShuffleSampler, CompiledDataset, LengthBatchSampler, Loader, RandomCrop, ShuffleSampler
from precompile.format.schema import FieldSpec

pytestmark = pytest.mark.filterwarnings("error")

Written = tuple[Path, list[dict[str, Any]]]
MakeLoader = Callable[[], Loader]


def loaders(images: Path, clips: Path) -> dict[str, MakeLoader]:
    dataset = CompiledDataset(images, fields=("image", "note"))
    sounds = CompiledDataset(clips, fields=("spectrogram", "label"))
    subset = torch.utils.data.Subset(dataset, list(range(3, 40)))
    return {
        "in order": lambda: Loader(dataset, 4),
        "shuffled": lambda: Loader(dataset, 4, shuffle=True, seed=2),
        "drop_last": lambda: Loader(dataset, 7, shuffle=True, drop_last=True),
        "windows": lambda: Loader(dataset, 7, shuffle=True, windows=RandomCrop(3)),
        "subset": lambda: Loader(subset, 7, shuffle=True),
        "a rank": lambda: Loader(dataset, 3, sampler=ShuffleSampler(dataset, rank=1, world_size=3)),
        "blocks": lambda: Loader(dataset, 3, sampler=BlockShuffleSampler(dataset, run_bytes=900, window_runs=3)),
        "by length": lambda: Loader(sounds, sampler=LengthBatchSampler(sounds, batch_size=4, window_batches=3)),
        "by frames": lambda: Loader(sounds, batch_frames=20, shuffle=True),
        "positions": lambda: Loader(dataset, 4, sampler=list(range(49, 0, -1))),
        "batches": lambda: Loader(dataset, sampler=[[1, 2], [3], [5, 4, 6], [0]]),
    }


def shuffled(images: Written) -> MakeLoader:
    dataset = CompiledDataset(images[0], fields=("image", "note"))
    return lambda: Loader(dataset, 4, shuffle=True, seed=2)


NAMES = [
    "in order", "shuffled", "drop_last", "windows", "subset", "a rank", "blocks", "by length", "by frames",
    "positions", "batches",
]  # fmt: skip


def content(batch: Any) -> list[Any]:
    parts = [part for value in batch for part in (value if isinstance(value, tuple) else (value,))]
    return [part.tolist() if isinstance(part, torch.Tensor) else part for part in parts]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_resumed_anywhere(images: Written, spectrograms: Written, name: str, data: st.DataObject) -> None:
    make = loaders(images[0], spectrograms[0])[name]
    undisturbed = make()
    epochs = [[content(batch) for batch in undisturbed] for _ in range(2)]
    assert len(epochs[0]) > 2
    stopped_after = data.draw(st.integers(0, len(epochs[0])))
    first = make()
    stream = iter(first)
    assert [content(next(stream)) for _ in range(stopped_after)] == epochs[0][:stopped_after]
    state = json.loads(json.dumps(first.state_dict()))
    del stream

    again = make()
    again.load_state_dict(state)
    if stopped_after < len(epochs[0]):
        assert len(again) == len(epochs[0]) - stopped_after
        assert [content(batch) for batch in again] == epochs[0][stopped_after:]
    assert [content(batch) for batch in again] == epochs[1]


def test_a_state_of_a_resumed_epoch(images: Written) -> None:
    make = shuffled(images)
    expected = [content(batch) for batch in make()]
    got: list[Any] = []
    state = make().state_dict()
    while len(got) < len(expected):
        loader = make()
        loader.load_state_dict(state)
        stream = iter(loader)
        got += [content(next(stream)) for _ in range(min(4, len(expected) - len(got)))]
        state = loader.state_dict()
    assert got == expected


def test_set_epoch_keeps_the_place_of_the_restored_epoch_only(images: Written) -> None:
    make = shuffled(images)
    loader = make()
    loader.set_epoch(4)
    stream = iter(loader)
    begun = [content(next(stream)) for _ in range(5)]
    state = loader.state_dict()
    rest = [content(batch) for batch in stream]

    def restored() -> Loader:
        loader = make()
        loader.load_state_dict(state)
        return loader

    kept, fresh = restored(), restored()
    kept.set_epoch(4)
    assert [content(batch) for batch in kept] == rest
    fresh.set_epoch(5)
    fresh.set_epoch(4)
    assert [content(batch) for batch in fresh] == begun + rest


def test_the_end_of_an_epoch(images: Written) -> None:
    make = shuffled(images)
    loader = make()
    first, second = ([content(batch) for batch in loader] for _ in range(2))
    loader = make()
    for _ in loader:
        state = loader.state_dict()  # in the last turn: all batches of the epoch were given
    goes_on, says_which = make(), make()
    goes_on.load_state_dict(state)
    assert [content(batch) for batch in goes_on] == second
    says_which.load_state_dict(state)
    says_which.set_epoch(0)
    assert list(says_which) == []
    says_which.set_epoch(1)
    assert [content(batch) for batch in says_which] == second
    assert first != second


def test_another_number_of_ranks(images: Written) -> None:
    dataset = CompiledDataset(images[0], fields="note")

    def run(rank: int, world_size: int, state: Any, batches: int | None) -> tuple[list[str], Any]:
        loader = Loader(dataset, 2, sampler=ShuffleSampler(dataset, rank=rank, world_size=world_size))
        if state:
            loader.load_state_dict(state)
        notes: list[str] = []
        for number, batch in enumerate(loader):
            if number == batches:
                break
            notes += batch
            last = loader.state_dict()
        return notes, last

    begun = [run(rank, 4, None, 3) for rank in range(4)]
    assert all(state == begun[0][1] for _, state in begun)
    rest = [run(rank, 2, begun[0][1], None)[0] for rank in range(2)]
    notes = [note for part, _ in begun for note in part] + [note for part in rest for note in part]
    assert sorted(notes) == sorted(dataset.column("note"))


def test_a_state_of_another_order_is_refused(images: Written) -> None:
    dataset = CompiledDataset(images[0])
    state = Loader(dataset, 4, shuffle=True, seed=1).state_dict()
    with pytest.raises(ValueError, match="the state does not fit this sampler: seed is 2 here, 1 in the state"):
        Loader(dataset, 4, shuffle=True, seed=2).load_state_dict(state)
    with pytest.raises(ValueError, match="sampler is 'ShuffleSampler' here, None in the state"):
        Loader(dataset, 4, shuffle=True).load_state_dict({})


def test_frames_bound_the_batches(spectrograms: Written) -> None:
    dataset = CompiledDataset(spectrograms[0], fields="spectrogram")
    loader = Loader(dataset, 6, batch_frames=24, shuffle=True)
    batches = list(loader)
    assert all(batch.data.shape[0] * batch.data.shape[-1] <= 24 and len(batch.lengths) <= 6 for batch in batches)
    assert sum(len(batch.lengths) for batch in batches) == 30
    lengths = np.concatenate([batch.lengths.numpy() for batch in batches])
    assert sorted(lengths) == sorted(dataset.lengths())


def test_a_state_of_other_content_is_refused(images: Written, tmp_path: Path) -> None:
    state = Loader(CompiledDataset(images[0], split="val"), 4, shuffle=True).state_dict()
    write(tmp_path / "x.pc", [FieldSpec("image", "uint8", (3, 8, 8))], 10)
    for other in (CompiledDataset(tmp_path / "x.pc"),):
        with pytest.raises(ValueError, match="the state does not fit this sampler: content is "):
            Loader(other, 4, shuffle=True).load_state_dict(state)


@pytest.mark.parametrize("state", [{}, None, {"epoch": 0}, {"epoch": 0, "consumed": -4}, {"epoch": 1.5, "consumed": 0},
                                   {"sampler": "ShuffleSampler", "epoch": 0, "consumed": 0}])  # fmt: skip
def test_a_state_that_is_none_is_refused(images: Written, state: Any) -> None:
    for loader in (Loader(CompiledDataset(images[0]), 4, sampler=[1, 2, 3]), Loader(CompiledDataset(images[0]), 4)):
        with pytest.raises(ValueError, match=r"state|epoch|consumed"):
            loader.load_state_dict(state)


def test_a_state_beyond_the_epoch_is_refused(images: Written) -> None:
    loader = Loader(CompiledDataset(images[0]), 4)
    with pytest.raises(ValueError, match=r"consumed must be at most \d+, the length of the epoch, got consumed=10000"):
        loader.load_state_dict({**loader.state_dict(), "consumed": 10**9})
