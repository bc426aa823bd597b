"""Batches to memory and back: whatever a collate function may give."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from same import assert_same

from precompile import Padded
from precompile.loading.workers.encoding import decode, encode
from precompile.loading.workers.slots import SlotMemory

Pair = collections.namedtuple("Pair", ["first", "second"])
DTYPES = [
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.bool,
    torch.complex64,
]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    tensor = torch.arange(int(np.prod(shape, dtype=int)) or 1)[: int(np.prod(shape, dtype=int))].reshape(shape)
    tensor = tensor.to(draw(st.sampled_from(DTYPES)))
    if tensor.ndim > 1 and draw(st.booleans()):
        tensor = tensor.transpose(0, -1)
    if tensor.ndim and tensor.shape[0] and draw(st.booleans()):
        tensor = tensor[draw(st.integers(0, tensor.shape[0] - 1)) :: draw(st.integers(1, 3))]
    return tensor.expand(2, *tensor.shape) if draw(st.booleans()) else tensor


arrays = st.builds(lambda tensor: tensor.numpy(), tensors().filter(lambda tensor: tensor.dtype != torch.bfloat16))
leaves = st.one_of(tensors(), arrays, st.integers(), st.text(), st.none(), st.just(np.array(["a", None], object)))
batches = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Padded, tensors(), tensors()),
    ),
    max_leaves=8,
)


def through(memory: SlotMemory, batch: Any) -> Any:
    encoded = encode(batch, memory)
    return decode(encoded, memory.slot.file.array if memory.slot else None)


@given(st.lists(batches, min_size=1, max_size=4))
def test_every_batch_comes_back(all_batches: list[Any]) -> None:
    memory = SlotMemory()
    freed: list[int] = []
    for batch in all_batches:
        memory.begin(freed, [])
        assert_same(through(memory, batch), batch, strides=False)
        freed = [memory.slot.number] if memory.slot else []
        memory.slot = None


def test_what_was_made_in_the_memory_is_not_copied() -> None:
    memory = SlotMemory()
    memory.begin([], [])
    for number in range(3):
        batch = torch.from_numpy(memory.array((2, 3, 64), np.dtype(np.float32)))
        batch.fill_(number)
        found = through(memory, (batch[0], batch.permute(2, 0, 1), torch.tensor(number)))
        assert memory.slot is not None
        if number:  # the first had no slot yet
            assert found[0].data_ptr() == batch.data_ptr()
            assert found[1].stride() == batch.permute(2, 0, 1).stride()
        assert_same(found[0], batch[0].clone())
        assert found[2] == number
        last = memory.slot.number
        memory.slot = None
        del batch, found
        memory.begin([last], [])
        assert memory.slot is not None
        assert number == 0 or memory.slot.number == last


def test_the_same_tensor_twice_is_the_same_tensor_twice() -> None:
    memory = SlotMemory()
    memory.begin([], [])
    tensor = torch.arange(5)
    found = through(memory, [tensor, tensor])
    assert found[0] is found[1]


def test_a_slot_that_is_held_is_not_used_again() -> None:
    memory = SlotMemory()
    memory.begin([], [])
    through(memory, torch.ones(100))
    assert memory.slot is not None
    first, number = memory.slot.file.array[:10], memory.slot.number
    memory.slot = None
    memory.begin([number], [])
    assert memory.slot is not None
    assert memory.slot.number != number
    del first
    second, memory.slot = memory.slot.number, None
    memory.begin([second], [])
    assert memory.slot is not None
    assert memory.slot.number == number


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(3, requires_grad=True), torch.ones(3, 3).to_sparse(), torch.ones(2, dtype=torch.complex64).conj()],
)
def test_unusual_tensors_are_pickled(tensor: torch.Tensor) -> None:
    memory = SlotMemory()
    memory.begin([], [])
    found = through(memory, [tensor])[0]
    assert torch.equal(found.detach().to_dense().resolve_conj(), tensor.detach().to_dense().resolve_conj())
    assert found.requires_grad == tensor.requires_grad
