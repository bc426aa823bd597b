"""Copies to a device that run beside everything else: what device.py needs of CUDA, and nothing more."""

from __future__ import annotations

import os
from typing import Any, Protocol

import torch

_cuda: Any = torch.cuda  # which has types in some versions only


class Event(Protocol):
    """A point in the work that a device was given."""

    def query(self) -> bool:
        """Whether the device has got there."""
        ...

    def synchronize(self) -> None:
        """Wait until it has, without holding the GIL."""
        ...


class CopyQueue(Protocol):
    """Copies to one device, run in their order at some time after they were queued. Safe in threads.

    The *consumer's stream* is the queue of work that is current in the calling thread for that device.
    """

    device: torch.device

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """New uint8 (num_bytes,) of host memory that the device reads by itself.

        When the tensor is gone, its memory serves another one only after the copies from it have run.
        """
        ...

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """Queue a copy of pinned memory, uint8 (n,), to new memory of the device. The source has to stay as it is."""
        ...

    def record(self) -> Event:
        """The end of the copies that were queued so far."""
        ...

    def wait(self, event: Event) -> None:
        """What the consumer's stream is given from now on runs after the event. The caller does not wait."""
        ...

    def keep(self, tensor: torch.Tensor) -> None:
        """When a copy is gone, its memory serves another one only after the consumer's stream has got that far."""
        ...

    def mark(self) -> Event:
        """The end of the work that the consumer's stream was given so far."""
        ...


class CudaQueue:
    """A CUDA stream of its own. Pinned memory is of torch's caching allocator, which waits for copies before reuse."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = _cuda.Stream(device)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        with _cuda.device(self.device):  # a new thread would make a context on GPU 0
            return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        with _cuda.stream(self._stream):
            return source.to(self.device, non_blocking=True)

    def record(self) -> Event:
        return _end_of(self._stream)

    def wait(self, event: Event) -> None:
        _cuda.current_stream(self.device).wait_event(event)

    def keep(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(_cuda.current_stream(self.device))

    def mark(self) -> Event:
        return _end_of(_cuda.current_stream(self.device))


def _end_of(stream: Any) -> Event:
    event: Event = _cuda.Event(blocking=True)  # a thread that waits for it sleeps; it does not spin
    stream.record_event(event)
    return event


def check_process(owner: int, device: torch.device) -> None:
    """Raise RuntimeError in another process than `owner`: pinned memory and streams do not outlive a fork."""
    if os.getpid() != owner:
        raise RuntimeError(
            f"device={str(device)!r} cannot be used in a forked process: its driver was started in the parent. "
            "Start the process with the `spawn` or `forkserver` method, or make a Loader with device='cpu' there"
        )
