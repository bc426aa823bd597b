"""One worker process, seen from the loader that has it."""

from __future__ import annotations

import contextlib
import multiprocessing.reduction  # noqa: F401  # lets sockets be pickled for new processes
import os
import pickle
import socket
import threading
import time
from multiprocessing.context import BaseContext

import numpy as np

from precompile.loading.processes.activity import Activity, read_page
from precompile.loading.workers import worker
from precompile.loading.workers.channel import Channel
from precompile.loading.workers.messages import Begun, Failed, Made, Task
from precompile.loading.workers.shared_file import SharedFile


class Member:
    """One worker process, and the slots it shares with this one."""

    def __init__(self, number: int, setup: worker.Setup, context: BaseContext) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        is_main_thread = threading.current_thread() is threading.main_thread()
        self.process = context.Process(  # type: ignore[attr-defined]
            target=worker.run, args=(theirs, setup, os.getpid(), is_main_thread),
            name=f"precompile-worker-{number}", daemon=True,
        )  # fmt: skip
        try:
            self.process.start()
        except Exception as error:
            method = context.get_start_method()
            if method != "fork":
                error.add_note(
                    f"With start_method={method!r} the dataset, its transform and collate are pickled for "
                    "workers: use functions and classes of a module, not lambdas"
                )
            raise
        finally:
            theirs.close()
        self.number, self.pid = number, self.process.pid
        self.name = f"worker {number} (process {self.pid})"
        self.num_open = 0
        """Tasks without an answer."""
        self._slots: dict[int, SharedFile] = {}
        self._busy: set[int] = set()
        self._lost: list[int] = []
        self._changing = threading.Lock()
        self._page: int | None = None
        """The descriptor of its activity page, which outlives it."""

    def give(self, task: Task) -> None:
        with self._changing:
            task.lost.extend(self._lost)
            self._lost.clear()
            task.freed.extend(number for number in self._busy if not self._slots[number].is_held)
            self._busy.difference_update(task.freed)
            self.num_open += 1
        with contextlib.suppress(OSError):  # that it is gone is seen by who reads
            self.channel.send_soon(pickle.dumps(task))

    def take(self) -> tuple[Begun | Made | Failed, np.ndarray | None]:
        """The next message, and the memory that its batches lie in. Raises EOFError or OSError when it is gone."""
        answer: Begun | Made | Failed = pickle.loads(self.channel.receive())
        new = None
        if isinstance(answer, Begun):
            self._page = self.channel.receive_descriptor() if answer.has_page else None
            return answer, None
        if isinstance(answer, Made) and answer.new_slot_bytes:
            new = SharedFile(self.channel.receive_descriptor(), answer.new_slot_bytes)
        with self._changing:
            self.num_open -= 1
            for number in answer.given_up:
                self._slots.pop(number, None)
            if isinstance(answer, Failed) or answer.slot is None:
                return answer, None
            if new is not None:
                self._slots[answer.slot] = new
            memory = self._slots[answer.slot].array
            self._busy.add(answer.slot)
        return answer, memory

    def lose_held(self) -> None:
        """Never have those slots used again that somebody looks at."""
        with self._changing:
            held = [number for number in self._busy if self._slots[number].is_held]
            self._busy.difference_update(held)
            self._lost += held
            for number in held:
                del self._slots[number]

    def last_activity(self) -> Activity | None:
        return None if self._page is None or self.pid is None else read_page(self._page, self.pid)

    def end(self, until: float) -> None:
        """Wait until then, by time.monotonic(), for its process to end, and kill it if it has not."""
        self.process.join(max(0, until - time.monotonic()))
        if self.process.is_alive():
            self.process.kill()  # also ends one that is stopped
            self.process.join()
        self.process.close()
        if self._page is not None:
            os.close(self._page)
            self._page = None
