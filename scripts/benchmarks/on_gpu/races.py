"""Races between copies and what comes before and after them, provoked: copies run long after they were queued.

The same check runs on queues that leave out one of the three things that prevent a race. It has to find each of them
out, or it would prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from on_gpu.gpu import Gpu
from on_gpu.settings import Row, Settings
from precompile.loading.devices.async_mover import AsyncMover
from precompile.loading.devices.copy_queue import CudaQueue, Event

_NUM_BYTES = 1 << 20
_LATE_MS = 4.0
_STRETCH = 10


class LateQueue(CudaQueue):
    """Each copy waits in the device before it runs."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu.device)
        self._gpu = gpu

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(self._stream):
            self._gpu.busy(_LATE_MS)
        return super().copy(source)


class WithoutWaiting(LateQueue):
    """The consumer reads before the copy has run."""

    def wait(self, event: Event) -> None:
        pass


class WithoutKeeping(LateQueue):
    """Device memory that was let go of is written to before the consumer's kernels have read it."""

    def keep(self, tensor: torch.Tensor) -> None:
        pass


class WithoutEvents(LateQueue):
    """Pinned buffers are filled again before they were copied."""

    def record(self) -> Event:
        return _Hasty(super().record())

    def wait(self, event: Any) -> None:
        super().wait(event.event)


class _Hasty:
    def __init__(self, event: Event) -> None:
        self.event = event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


CONTROLS = {
    "waiting for the copy": WithoutWaiting,
    "keeping the memory": WithoutKeeping,
    "events of buffers": WithoutEvents,
}


def check_races(gpu: Gpu, settings: Settings) -> Iterator[Row]:
    wrong = _wrong(gpu, LateQueue(gpu), settings.races)
    yield Row("late copies: content", f"{wrong:,} of {settings.races:,} batches wrong", (wrong,), wrong == 0)
    for what, queue in CONTROLS.items():
        wrong = _wrong(gpu, queue(gpu), settings.races)
        found = f"{wrong:,} of {settings.races:,} batches wrong, some must be"
        yield Row(f"late copies: found out without {what}", found, (wrong,), wrong > 0)


def _wrong(gpu: Gpu, queue: LateQueue, num_batches: int) -> int:
    """How many of the batches, each all of one number, were not. The consumer drops each at once; its kernels are later
    than the copies in every second stretch, and earlier in the others."""
    mover = AsyncMover(queue)
    pool = mover.buffers(_NUM_BYTES)
    torch.zeros(_NUM_BYTES, dtype=torch.uint8, device=gpu.device).aminmax()  # loads the kernel
    found = []
    for number in range(num_batches):
        is_late = number // _STRETCH % 2 == 1
        if number % _STRETCH == 0:
            gpu.finish()
        buffer = pool.take()
        buffer[:] = number % 251
        batch = mover.send(torch.from_numpy(buffer)).receive()
        del buffer
        if is_late:
            gpu.busy(2 * _LATE_MS)
        found.append((number % 251, torch.stack(batch.aminmax())))
        del batch
    gpu.finish()
    return sum(extremes.tolist() != [number, number] for number, extremes in found)
