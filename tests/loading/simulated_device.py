"""A device that works late: what it is given runs when a schedule says so, in any order that its streams allow."""

from __future__ import annotations

import random
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

COPIES = "copies"
GARBAGE = 0xEE


class SimulatedError(RuntimeError):
    """What the device says when it fails."""


@dataclass(repr=False, eq=False)
class SimulatedEvent:
    device: SimulatedDevice
    is_done: bool = False

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self.device.run_until(lambda: self.is_done)


@dataclass(repr=False, eq=False)
class Block:
    """Memory of the device, given again and again, like that of torch's caching allocator."""

    memory: np.ndarray
    is_free: bool = False
    streams: set[str] = field(default_factory=set)
    waits_for: list[SimulatedEvent] = field(default_factory=list)


@dataclass(repr=False, eq=False)
class Operation:
    run: Callable[[], None]
    is_ready: Callable[[], bool] = lambda: True


class SimulatedDevice:
    """A CopyQueue with consumer's streams; `stream` is the current one of all threads.

    Nothing runs by itself: `run_some` runs operations in an order that `schedule` draws, and waiting for an event runs
    as many as that needs. What is not yet copied is garbage. Memory is given again as soon as the rules allow.
    """

    def __init__(self, schedule: random.Random) -> None:
        self.device = torch.device("cpu")
        self.stream = "main"
        self.fails_in: int | None = None
        """How many copies until one fails."""
        self.blocks: list[Block] = []
        self.num_pinned = 0
        self._schedule = schedule
        self._streams: dict[str, deque[Operation]] = {COPIES: deque()}
        self._lock = threading.RLock()

    # What a CopyQueue has

    def pinned(self, num_bytes: int) -> torch.Tensor:
        with self._lock:
            self.num_pinned += 1
        return torch.full((num_bytes,), GARBAGE, dtype=torch.uint8)

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        with self._lock:
            if self.fails_in is not None:
                self.fails_in -= 1
                if self.fails_in < 0:
                    raise SimulatedError("out of memory on the device")
            assert source.dtype == torch.uint8
            assert source.ndim == 1
            block = self._allocate(len(source))
            target, read = torch.from_numpy(block.memory), source
            self._give(COPIES, lambda: target.copy_(read))
            lent = block.memory[:]
            weakref.finalize(lent, self._freed, block)
            return torch.from_numpy(lent)

    def record(self) -> SimulatedEvent:
        return self._event(COPIES)

    def mark(self) -> SimulatedEvent:
        return self._event(self.stream)

    def wait(self, event: SimulatedEvent) -> None:
        with self._lock:
            self._give(self.stream, lambda: None, lambda: event.is_done)

    def keep(self, tensor: torch.Tensor) -> None:
        with self._lock:
            self._block_of(tensor).streams.add(self.stream)

    # What a consumer and a schedule have

    def read(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Queue a kernel on the current stream that reads a tensor; the list gets what it finds. Holds no reference."""
        with self._lock:
            block = self._block_of(tensor)
            words = torch.from_numpy(block.memory).view(tensor.dtype)
            alias = words.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            found: list[torch.Tensor] = []
            self._give(self.stream, lambda: found.append(alias.clone()))
            return found

    def run_some(self, most: int) -> int:
        """Run up to `most` operations; returns how many could run."""
        with self._lock:
            for done in range(most):
                ready = [stream for stream in self._streams.values() if stream and stream[0].is_ready()]
                if not ready:
                    return done
                self._schedule.choice(ready).popleft().run()
            return most

    def run_until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            assert self.run_some(1) or is_done(), "the device waits for what it was never given"

    def run_all(self) -> None:
        self.run_until(self.is_idle)

    def is_idle(self) -> bool:
        with self._lock:
            return not any(self._streams.values())

    def _give(self, stream: str, run: Callable[[], object], is_ready: Callable[[], bool] = lambda: True) -> None:
        self._streams.setdefault(stream, deque()).append(Operation(run, is_ready))

    def _event(self, stream: str) -> SimulatedEvent:
        with self._lock:
            event = SimulatedEvent(self)
            self._give(stream, lambda: setattr(event, "is_done", True))
            return event

    def _allocate(self, num_bytes: int) -> Block:
        for block in self.blocks:
            if block.is_free and len(block.memory) == num_bytes and all(event.is_done for event in block.waits_for):
                block.is_free = False
                block.streams.clear()
                return block
        # Aligned, so that a view of any dtype is one.
        self.blocks.append(Block(np.full(-(-num_bytes // 8), GARBAGE, np.int64).view(np.uint8)[:num_bytes]))
        self.blocks[-1].memory[:] = GARBAGE
        return self.blocks[-1]

    def _freed(self, block: Block) -> None:
        with self._lock:
            block.waits_for = [self._event(stream) for stream in block.streams]
            block.is_free = True

    def _block_of(self, tensor: torch.Tensor) -> Block:
        start = tensor.untyped_storage().data_ptr()
        return next(block for block in self.blocks if block.memory.ctypes.data == start)
