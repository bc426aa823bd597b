"""Copies with checksums, in a few threads; the caller's thread only watches, so an interrupt is heard at once."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precompile import machine
from precompile.errors import FormatError
from precompile.format.files import cannot_be_read, open_regular
from precompile.loading.caching.unshared import opened

BLOCK_BYTES = 1 << 20
"""Read, hashed and written while it lies in a core's cache."""
_MAX_THREADS = 4
_WATCH_SECONDS = 0.1

Job = Callable[["Meter"], None]


class Meter:
    """How much is copied, over all threads."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self.stop = threading.Event()
        self._lock = threading.Lock()

    def add(self, num_bytes: int) -> None:
        """Raises StoppedCopy when the others were stopped."""
        with self._lock:
            self.done_bytes += num_bytes
        if self.stop.is_set():
            raise StoppedCopy


class StoppedCopy(Exception):
    """Another thread failed, or the user interrupted."""


def new_checksum() -> Any:
    """XXH3-128, as the format has it."""
    import xxhash  # only who stages needs it

    return xxhash.xxh3_128()


def run(jobs: Sequence[Job], meter: Meter, watch: Callable[[Meter], None]) -> None:
    """Do all jobs. `watch` is called now and then, in this thread. The first error of a job is raised."""
    todo: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        todo.put(job)
    errors: list[BaseException] = []
    changed = threading.Semaphore(0)

    def work() -> None:
        try:
            while not meter.stop.is_set():
                todo.get_nowait()(meter)
        except (queue.Empty, StoppedCopy):
            pass
        except BaseException as error:
            errors.append(error)
            meter.stop.set()
        finally:
            changed.release()

    count = min(_MAX_THREADS, machine.usable_cpus(), len(jobs))
    threads = [threading.Thread(target=work, name=f"precompile-stage-{n}", daemon=True) for n in range(count)]
    try:
        for thread in threads:
            thread.start()
        ended = 0
        while ended < count:
            ended += changed.acquire(timeout=_WATCH_SECONDS)
            watch(meter)
    finally:
        meter.stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if errors:
        raise errors[0]


def copy_file(source: Path, target: Path, num_bytes: int, checksum: str, meter: Meter) -> None:
    """Copy over the reserved file `target`. Raises FormatError when the source is not what its manifest says."""
    with opened(target) as writing:
        at = 0
        for block in checked_blocks(source, num_bytes, checksum):
            write_at(writing, block, at)
            at += len(block)
            meter.add(len(block))


def checked_blocks(path: Path, num_bytes: int, checksum: str) -> Iterator[memoryview]:
    """The bytes of a file, in one reused buffer. Raises FormatError, at the end, for a wrong size or checksum."""
    digest = new_checksum()
    buffer = memoryview(np.empty(BLOCK_BYTES, np.uint8))  # type: ignore[arg-type]
    reading = open_sized(path, num_bytes)
    try:
        for start in range(0, num_bytes, BLOCK_BYTES):
            block = buffer[: min(BLOCK_BYTES, num_bytes - start)]
            read_at(reading, block, start, path)
            digest.update(block)
            yield block
    finally:
        os.close(reading)
    if digest.hexdigest() != checksum:
        raise FormatError(f"{path}: expected checksum {checksum}, found {digest.hexdigest()}; "
                          "restore the file or build again")  # fmt: skip


def open_sized(path: Path, num_bytes: int) -> int:
    """A read-only descriptor. Raises FormatError when the file is missing or has another size."""
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        raise FormatError(f"{path}: the file is missing; restore it or build again") from None
    if (found := os.fstat(descriptor).st_size) != num_bytes:
        os.close(descriptor)
        raise FormatError(f"{path}: expected {num_bytes} bytes, found {found}; restore the file or build again")
    return descriptor


def read_at(descriptor: int, buffer: memoryview, start: int, path: Path) -> None:
    """Fill the buffer. Raises FormatError when the disk fails or the file has become shorter."""
    done = 0
    while done < len(buffer):
        try:
            count = os.preadv(descriptor, [buffer[done:]], start + done)
        except OSError as error:
            raise cannot_be_read(path, error) from None
        if not count:
            raise FormatError(f"{path}: ended at {start + done} bytes while it was read; build again")
        done += count


def write_over(path: Path, *parts: bytes | memoryview) -> None:
    """Fill a reserved file. Never truncated first: its pages would be anybody's for a moment."""
    with opened(path) as descriptor:
        at = 0
        for part in parts:
            write_at(descriptor, memoryview(part), at)
            at += len(part)


def write_at(descriptor: int, data: memoryview, start: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, start)
        data, start = data[count:], start + count
