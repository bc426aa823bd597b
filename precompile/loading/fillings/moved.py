"""Batches that are sent to a device as soon as they are filled."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from precompile.loading.fillings.filling import FilledBy, Filling
from precompile.loading.reading.batch_reader import Job

if TYPE_CHECKING:
    from precompile.loading.devices.device import Mover, Sent


class MovedFilling:
    """Another filling, and what moves its batches."""

    filled_by: ClassVar[FilledBy] = "threads"

    def __init__(self, filling: Filling, mover: Mover) -> None:
        self._filling, self._mover = filling, mover
        self.batches_per_call, self.ask_for = filling.batches_per_call, filling.ask_for
        self.processes = filling.processes

    def plan(self, positions: np.ndarray, sizes: list[int], epoch: int) -> Job:
        self._mover.check_process()
        planned = deque([self._filling.plan(positions, sizes, epoch)])
        sent: deque[Sent] = deque()

        def fill() -> None:
            self._mover.check_process()  # pinned memory does not outlive a fork
            planned[0].fill()
            sent.extend(map(self._mover.send, planned[0].batches()))
            planned.clear()  # lets go of the host buffers

        def batches() -> Iterator[Any]:
            while sent:
                yield sent.popleft().receive()

        return Job(fill, batches, sizes)
