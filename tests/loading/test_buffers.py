"""BufferPool: aligned memory, reused only when nobody looks at it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from precompile.loading.reading.buffers import BufferPool, aligned_buffer, fresh_array

WAYS_TO_HOLD: dict[str, Callable[[np.ndarray], Any]] = {
    "the array": lambda buffer: buffer,
    "a slice of the array": lambda buffer: buffer[10:20],
    "a view of the array": lambda buffer: buffer.view(np.int32).reshape(5, -1).T,
    "a memoryview": lambda buffer: memoryview(buffer),
    "a tensor": torch.from_numpy,
    "a slice": lambda buffer: torch.from_numpy(buffer)[3:5],
    "an element": lambda buffer: torch.from_numpy(buffer)[3],
    "a view of another dtype": lambda buffer: torch.from_numpy(buffer).view(torch.float32),
    "a permute": lambda buffer: torch.from_numpy(buffer).view(10, 2, 5).permute(2, 0, 1),
    "numpy from a tensor": lambda buffer: torch.from_numpy(buffer)[4:].numpy(),
    "a slice of numpy from a tensor": lambda buffer: torch.from_numpy(buffer).numpy()[5:6],
    "detached": lambda buffer: torch.from_numpy(buffer).detach(),
    "the storage": lambda buffer: torch.from_numpy(buffer).untyped_storage(),
    "in a container": lambda buffer: {"image": [torch.from_numpy(buffer).split(10)]},
    "a closure": lambda buffer: lambda: buffer,
    "autograd": lambda buffer: torch.from_numpy(buffer).view(torch.float32) * torch.ones(25, requires_grad=True),
}  # fmt: skip


@pytest.mark.parametrize("num_bytes", [1, 63, 64, 65, 4096, (2 << 20) - 1, 2 << 20, (5 << 20) + 3])
def test_aligned_buffer(num_bytes: int) -> None:
    buffer = aligned_buffer(num_bytes)
    assert (buffer.dtype, buffer.shape) == (np.uint8, (num_bytes,))
    assert buffer.ctypes.data % 64 == 0
    assert not buffer.any()
    buffer[:] = 7
    assert (buffer == 7).all()


def test_buffers_are_private_to_a_process() -> None:
    buffer = aligned_buffer(100)
    child = os.fork()
    if child == 0:
        buffer[:] = 1
        os._exit(0)
    os.waitpid(child, 0)
    assert not buffer.any()


@pytest.mark.parametrize("way", WAYS_TO_HOLD)
def test_a_held_buffer_is_not_given_again(way: str) -> None:
    pool = BufferPool(100)
    held = WAYS_TO_HOLD[way](pool.take())
    other = pool.take()
    assert len(pool) == 2
    address = other.ctypes.data
    del other
    assert [pool.take().ctypes.data for _ in range(3)] == [address] * 3
    del held
    assert len({id(buffer) for buffer in [pool.take(), pool.take()]} | {address}) == 3
    assert len(pool) == 2


def test_a_copy_does_not_hold() -> None:
    pool = BufferPool(100)
    kept = [torch.from_numpy(pool.take()).clone() for _ in range(10)]
    assert len(pool) == 1
    assert len(kept) == 10


def test_the_buffer_unused_for_longest_comes_first() -> None:
    pool = BufferPool(8)
    addresses = [buffer.ctypes.data for buffer in [pool.take() for _ in range(3)]]
    assert [pool.take().ctypes.data for _ in range(6)] == addresses * 2


def test_a_buffer_dropped_in_another_thread_is_free() -> None:
    pool = BufferPool(8)
    held = [torch.from_numpy(pool.take())]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    pool.take()
    assert len(pool) == 1


@pytest.mark.parametrize("shape", [(), (3,), (7, 1000), (5, 1000, 1000), (0, 4)])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "int64"])
def test_fresh_arrays_are_zeros_of_their_own(shape, dtype):
    first, second = (fresh_array(shape, np.dtype(dtype)) for _ in range(2))
    assert (first.shape, first.dtype, first.flags.c_contiguous) == (shape, np.dtype(dtype), True)
    first[...] = 1
    assert not second.any()


def test_the_memory_of_kept_buffers_goes_with_them() -> None:
    pool = BufferPool(8)
    kept = [torch.from_numpy(pool.take()) for _ in range(200)]
    assert len({tensor.data_ptr() for tensor in kept}) == 200
    assert len(pool) < 40
    del kept
    assert len({pool.take().ctypes.data for _ in range(100)}) < 40
