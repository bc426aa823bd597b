"""What reading is measured against: the fastest plain copies of the same bytes.

Every copy goes into three rotating buffers, which lie at multiples of 64 and in huge pages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from precompile.loading.reading.buffers import aligned_buffer
from reading.comparison import Run

BUFFERS = 3
READ_BYTES = 1 << 20


def rotating_buffers(num_bytes: int) -> list[np.ndarray]:
    """uint8 (num_bytes,) each, every page touched."""
    buffers = [aligned_buffer(num_bytes) for _ in range(BUFFERS)]
    for buffer in buffers:
        buffer[:] = 0
    return buffers


def take(rows: np.ndarray, batch_size: int, *, threads: int = 1) -> Run:
    """One numpy.take a batch of shuffled rows of uint8 (n, bytes); each thread takes every `threads`-th batch."""
    count, row_bytes = rows.shape
    buffers = [
        [buffer.reshape(batch_size, row_bytes) for buffer in rotating_buffers(batch_size * row_bytes)]
        for _ in range(threads)
    ]
    run_each = map if threads == 1 else ThreadPoolExecutor(threads).map

    @contextmanager
    def prepared(seed: int) -> Iterator[Callable[[], int]]:
        batches = _batches(count, batch_size, seed)

        def gather(thread: int) -> int:
            own = batches[thread::threads]
            for number, batch in enumerate(own):
                np.take(rows, batch, axis=0, out=buffers[thread][number % BUFFERS], mode="clip")
            return len(own) * batch_size

        yield lambda: sum(run_each(gather, range(threads)))

    return prepared


def copy_padded(plain: np.ndarray, lengths: np.ndarray, batch_size: int) -> Run:
    """One memcpy a batch, of as many bytes as `batch_size` shuffled records have once they are padded to the longest.

    plain: uint8 (bytes,), the records one behind the other; what is copied lies one behind the other, too.
    lengths: int64 (n,), bytes of each record.
    """
    buffers = rotating_buffers(batch_size * int(lengths.max()))

    @contextmanager
    def prepared(seed: int) -> Iterator[Callable[[], int]]:
        sizes = [batch_size * int(lengths[batch].max()) for batch in _batches(len(lengths), batch_size, seed)]

        def copy() -> int:
            place = 0
            for number, size in enumerate(sizes):
                place = place if place + size <= len(plain) else 0
                buffers[number % BUFFERS][:size] = plain[place : place + size]
                place += size
            return len(sizes) * batch_size

        yield copy

    return prepared


def copy_records(plain: np.ndarray, lengths: np.ndarray, batch_size: int) -> Run:
    """One memcpy a record of a shuffled order, a batch's records one behind the other; see `copy_padded`."""
    buffers = rotating_buffers(batch_size * int(lengths.max()))
    records = np.split(plain, np.cumsum(lengths)[:-1])

    @contextmanager
    def prepared(seed: int) -> Iterator[Callable[[], int]]:
        batches = [batch.tolist() for batch in _batches(len(lengths), batch_size, seed)]

        def copy() -> int:
            for number, batch in enumerate(batches):
                buffer, place = buffers[number % BUFFERS], 0
                for index in batch:
                    record = records[index]
                    buffer[place : place + len(record)] = record
                    place += len(record)
            return len(batches) * batch_size

        yield copy

    return prepared


def _batches(count: int, batch_size: int, seed: int) -> list[np.ndarray]:
    """Shuffled, without the last when it is short."""
    order = np.random.default_rng(seed).permutation(count)
    return [order[start : start + batch_size] for start in range(0, count - batch_size + 1, batch_size)]


def read_through(files: Sequence[Path]) -> None:
    """Read files from begin to end, 1 MiB a call, into one buffer."""
    buffer = memoryview(aligned_buffer(READ_BYTES))
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            place = 0
            while got := os.preadv(descriptor, [buffer], place):
                place += got
        finally:
            os.close(descriptor)
