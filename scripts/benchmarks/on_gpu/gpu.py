"""The device of a check: how to keep it busy, and how to take its time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_TRIAL_CYCLES = 20_000_000
_cuda: Any = torch.cuda


class Gpu:
    """A CUDA device. Tests put something else in its place."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        begin = self.now()
        _cuda._sleep(_TRIAL_CYCLES)
        milliseconds = self.milliseconds(begin, self.now())
        self._cycles = _TRIAL_CYCLES / milliseconds

    @property
    def name(self) -> str:
        memory = _cuda.get_device_properties(self.device).total_memory / 2**30
        return f"{_cuda.get_device_name(self.device)}, {memory:.0f} GiB, CUDA {torch.version.cuda or torch.version.hip}"

    def busy(self, milliseconds: float) -> None:
        """Queue a kernel on the current stream that does nothing for so long."""
        _cuda._sleep(int(milliseconds * self._cycles))

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        """Another stream is current, as in a program that trains on one of its own."""
        with _cuda.stream(_cuda.Stream(self.device)):
            yield

    def finish(self) -> None:
        """Wait until all streams are idle."""
        _cuda.synchronize(self.device)

    def now(self) -> Any:
        """A moment of the current stream."""
        event = _cuda.Event(enable_timing=True)
        event.record()
        return event

    def milliseconds(self, begin: Any, end: Any) -> float:
        """From one moment to another."""
        end.synchronize()
        return float(begin.elapsed_time(end))

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """uint8 (num_bytes,) that the device reads by itself."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
