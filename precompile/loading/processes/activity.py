"""Which samples a process works on, in a small page of memory that other processes can read.

    if activity.page is not None:
        activity.page.reading(first, count)

A page costs nothing to look at for its owner: no system call is made, and nobody has to answer.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from precompile.loading.processes import memfd, stacks

Value = TypeVar("Value")

NAME = "precompile-activity"
_NUM_BYTES = 8192
_OWNER = struct.Struct("=8sq")
_WORK = struct.Struct("=qqqqq")
"""first, count, counter, whether it is idle, and the monotonic clock in ns."""
_FIRST, _COUNT, _COUNTER, _IDLE, _CHANGED = range(5)
_DATASET = struct.Struct("=qq")
"""generation, and the length of the root in bytes; the root follows."""
_MAGIC = b"pc-act-1"
_WORK_AT = _OWNER.size
_DATASET_AT = _WORK_AT + _WORK.size
_ROOT_AT = _DATASET_AT + _DATASET.size
_MAX_ROOT_BYTES = _NUM_BYTES - _ROOT_AT


@dataclass(frozen=True, slots=True)
class Activity:
    """One look at a process."""

    root: str
    """The directory of the compiled dataset; empty before the first."""
    generation: int
    first: int
    """The first sample number that is worked on (a row of the index); -1 before the first."""
    count: int
    """How many samples are worked on, `first` among them."""
    counter: int
    """How often work began so far."""
    is_idle: bool
    """Whether it waits for work."""
    changed_at: float
    """When that was written, in seconds of time.monotonic(), which all processes of a machine share."""


class ActivityPage:
    """Written by one process. Safe in threads: what was written last is what is seen."""

    def __init__(self, fd: int) -> None:
        os.ftruncate(fd, _NUM_BYTES)
        self.fd = fd
        self._memory = mmap.mmap(fd, _NUM_BYTES)
        self._cells = memoryview(self._memory)[_WORK_AT : _WORK_AT + _WORK.size].cast("q")
        self._counter = 0
        self._root, self._generation = "", 0
        self._first, self._count = -1, 0
        _OWNER.pack_into(self._memory, 0, _MAGIC, os.getpid())
        self._write(is_idle=True)

    def dataset(self, root: str, generation: int) -> None:
        """What is read from now on."""
        if root == self._root and generation == self._generation:
            return
        self._root, self._generation = root, generation
        encoded = os.fsencode(root)[:_MAX_ROOT_BYTES]
        self._memory[_ROOT_AT : _ROOT_AT + len(encoded)] = encoded
        _DATASET.pack_into(self._memory, _DATASET_AT, generation, len(encoded))

    def reading(self, first: int, count: int = 1) -> None:
        """These samples are worked on from now on."""
        self._first, self._count = first, count
        self._counter += 1
        self._write(is_idle=False)

    def each(self, numbers: Sequence[int], values: Iterable[Value]) -> Iterator[Value]:
        """The values, one for each sample, which is noted as what is worked on; a quarter of a microsecond each."""
        cells, now, counter = self._cells, time.monotonic_ns, self._counter
        self._count = 1
        self._write(is_idle=False)
        try:
            for number, value in zip(numbers, values):
                counter += 1
                cells[_FIRST], cells[_COUNTER], cells[_CHANGED] = number, counter, now()
                yield value
        finally:
            self._counter, self._first = counter, cells[_FIRST]

    def idle(self) -> None:
        """It waits for work from now on."""
        self._write(is_idle=True)

    def _write(self, *, is_idle: bool) -> None:
        cells = self._cells  # not by struct, which writes zeros first, and others may be reading
        cells[_FIRST], cells[_COUNT], cells[_COUNTER] = self._first, self._count, self._counter
        cells[_IDLE], cells[_CHANGED] = is_idle, time.monotonic_ns()

    def close(self) -> None:
        self._cells.release()
        self._memory.close()
        os.close(self.fd)


page: ActivityPage | None = None
"""Of this process; None until `begin`, and where the system has no such files."""
_owner = -1


def begin() -> None:
    """Make the page of this process, and let its stacks be asked for (`stacks.begin`). Does nothing the second time.

    Processes that are forked later begin by themselves.
    """
    global page, _owner
    if _owner == os.getpid():
        return
    stacks.begin()
    inherited, page, _owner = page, None, os.getpid()
    if inherited is not None:
        inherited.close()
    fd = memfd.create(NAME)
    if fd is not None:
        page = ActivityPage(fd)


def _begin_in_child() -> None:
    global page
    if page is not None:
        try:
            begin()
        except OSError:
            page = None  # that of the parent is not to be written to


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


def read_activity(pid: int) -> Activity | None:
    """What a process works on, by its page; None when it has none or is gone."""
    fd = memfd.open_of(pid, NAME)
    if fd is None:
        return None
    with contextlib.closing(os.fdopen(fd, "rb", buffering=0)) as file:
        return read_page(file.fileno(), pid)


def read_page(fd: int, pid: int) -> Activity | None:
    """The page of a process by a descriptor of it, which outlives the process; None when it is not that.

    It is written without locks: of a process that is writing right now, `first` and `count` may be of two writes.
    """
    data = before = b""
    for _ in range(4):  # until it did not change while it was read
        before, data = data, os.pread(fd, _NUM_BYTES, 0)
        if data == before:
            break
    if len(data) < _ROOT_AT or _OWNER.unpack_from(data, 0) != (_MAGIC, pid):
        return None  # a child that was forked past Python has its parent's
    first, count, counter, is_idle, changed_ns = _WORK.unpack_from(data, _WORK_AT)
    generation, length = _DATASET.unpack_from(data, _DATASET_AT)
    root = os.fsdecode(data[_ROOT_AT : _ROOT_AT + length])
    return Activity(root, generation, first, count, counter, bool(is_idle), changed_ns / 1e9)
