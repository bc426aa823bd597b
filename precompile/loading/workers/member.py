"""One worker process, seen from the loader that has it."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import multiprocessing.reduction  # lets sockets be pickled for new processes
import os
import pickle
import socket
import threading
import time
from collections import deque
from multiprocessing.context import BaseContext

import numpy as np

from precompile.loading.processes.activity import Activity, read_page
from precompile.loading.workers import worker
from precompile.loading.workers.channel import ParentEnd
from precompile.loading.workers.messages import Begun, Failed, Made, Task
from precompile.loading.workers.shared_file import SharedFile

_LOOKED_AT = 32


class Member:
    """One worker process, and the slots it shares with this one."""

    def __init__(self, number: int, setup: worker.Setup, context: BaseContext) -> None:
        if multiprocessing.current_process().daemon:
            raise RuntimeError("a process of a pool, or a worker of a DataLoader, may not have workers of its own: "
                               "give the Loader there workers=0")  # fmt: skip
        ours, theirs = socket.socketpair()
        self.channel = ParentEnd(ours)
        is_main_thread = threading.current_thread() is threading.main_thread()
        self.process = context.Process(  # type: ignore[attr-defined]
            target=worker.run, args=(theirs, setup, os.getpid(), is_main_thread),
            name=f"precompile-worker-{number}", daemon=True,
        )  # fmt: skip
        try:
            self.process.start()
        except Exception as error:
            method = context.get_start_method()
            if isinstance(error, pickle.PicklingError | AttributeError | TypeError):
                error.add_note(
                    f"With start_method={method!r} the dataset, its transform and collate are pickled for "
                    "workers: use functions and classes of a module, not lambdas"
                )
            raise
        finally:
            theirs.close()
        self.number, self.pid = number, self.process.pid
        self.name = f"worker {number} (process {self.pid})"
        self.has_begun = False
        self.num_open = 0
        """Tasks without an answer."""
        self._slots: dict[int, SharedFile] = {}
        self._busy: deque[int] = deque()
        """Slots with batches, which came last behind."""
        self._lost: list[int] = []
        self._changing = threading.Lock()
        self._message: Begun | Made | Failed | None = None
        """One whose descriptor has not come yet."""
        self._page: int | None = None
        """The descriptor of its activity page, which outlives it."""

    def give(self, task: Task) -> None:
        with self._changing:
            task.lost.extend(self._lost)
            self._lost.clear()
            for _ in range(min(len(self._busy), _LOOKED_AT)):  # a consumer may keep thousands
                number = self._busy.popleft()
                (self._busy if self._slots[number].is_held else task.freed).append(number)
            self.num_open += 1
        self.channel.send(pickle.dumps(task))

    def take(self) -> tuple[Begun | Made | Failed, np.ndarray | None] | None:
        """The next message, and the memory that its batches lie in; None while they have not come whole.

        Raises EOFError or OSError when the worker is gone.
        """
        if self._message is None:
            received = self.channel.receive()
            if received is None:
                return None
            self._message = pickle.loads(received)
        message, descriptor = self._message, None
        if _brings_descriptor(message):
            descriptor = self.channel.receive_descriptor()
            if descriptor is None:
                return None
        self._message = None
        if isinstance(message, Begun):
            self.has_begun, self._page = True, descriptor
            return message, None
        return message, self._memory_of(message, descriptor)

    def _memory_of(self, answer: Made | Failed, descriptor: int | None) -> np.ndarray | None:
        with self._changing:
            self.num_open -= 1
            for number in answer.given_up:
                self._slots.pop(number, None)
            if isinstance(answer, Failed) or answer.slot is None:
                return None
            if descriptor is not None:
                self._slots[answer.slot] = SharedFile(descriptor, answer.new_slot_bytes)
            self._busy.append(answer.slot)
            return self._slots[answer.slot].array

    def lose_held(self) -> None:
        """Never have those slots used again that somebody looks at."""
        with self._changing:
            held = [number for number in self._busy if self._slots[number].is_held]
            self._busy = deque(number for number in self._busy if number not in held)
            self._lost += held
            for number in held:
                del self._slots[number]

    def last_activity(self) -> Activity | None:
        return None if self._page is None or self.pid is None else read_page(self._page, self.pid)

    def end(self, until: float) -> None:
        """Wait until then, by time.monotonic(), for its process to end, and kill it if it has not."""
        with contextlib.suppress(ValueError):  # it is closed already
            self.process.join(max(0, until - time.monotonic()))
            if self.process.is_alive():
                self.process.kill()  # also ends one that is stopped
                self.process.join()
            self.process.close()
        if self._page is not None:
            os.close(self._page)
            self._page = None

    def forget_in_child(self) -> None:
        """A forked child that ends would end all processes that multiprocessing believes to be its own."""
        getattr(multiprocessing.process, "_children", set()).discard(self.process)


def _brings_descriptor(message: Begun | Made | Failed) -> bool:
    if isinstance(message, Begun):
        return message.has_page
    return isinstance(message, Made) and message.new_slot_bytes > 0
