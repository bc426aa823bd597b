"""What runs in a worker process: tasks in, batches in shared memory out."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from precompile.loading.processes import activity
from precompile.loading.processes.init_worker import init_worker
from precompile.loading.workers.channel import WorkerEnd
from precompile.loading.workers.encoding import Encoded, encode
from precompile.loading.workers.messages import Begun, Failed, Failure, Made, Task, failure_of
from precompile.loading.workers.slots import SlotMemory

_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker needs to know; picklable, where processes are not forked."""

    make_filling: Callable[[SlotMemory], Any]
    """Gives a Filling whose batches lie in this memory."""


def run(end: socket.socket, setup: Setup, parent: int, is_main_thread: bool) -> None:
    """The whole life of a worker. parent: the process that it belongs to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C reaches the whole group; the parent decides
    _end_with(parent, at_once=is_main_thread)
    try:
        _work(WorkerEnd(end), setup)
    except (EOFError, ConnectionError):
        return  # the parent is gone, or wants no more


def _work(channel: WorkerEnd, setup: Setup) -> None:
    memory = SlotMemory()
    try:
        init_worker()
        filling = setup.make_filling(memory)
    except BaseException as error:
        channel.send(pickle.dumps(Failed(-1, failure_of(error), [])))
        return
    page = activity.page
    channel.send(pickle.dumps(Begun(page is not None)), None if page is None else page.fd)
    gc.freeze()  # what is there now stays: no collection has to look at it, or to touch pages shared with the parent
    worker = _Worker(channel, memory, filling)
    while True:
        worker.answer()


class _Worker:
    def __init__(self, channel: WorkerEnd, memory: SlotMemory, filling: Any) -> None:
        self._channel, self._memory, self._filling = channel, memory, filling

    def answer(self) -> None:
        """Wait for a task, do it, and send what came of it."""
        if activity.page is not None:
            activity.page.idle()
        task: Task = pickle.loads(self._channel.receive())
        answer = self._done(task)
        if not isinstance(answer, Made) or not answer.new_slot_bytes:
            self._channel.send(pickle.dumps(answer))
            return
        slot = self._memory.slot
        assert slot is not None
        with slot.descriptor() as descriptor:
            self._channel.send(pickle.dumps(answer), descriptor)

    def _done(self, task: Task) -> Made | Failed:
        given_up: list[int] = []
        began = time.perf_counter()
        try:
            given_up = self._memory.begin(task.freed, task.lost)
            encoded, then = self._batches(task)
        except BaseException as error:
            self._memory.give_back()
            return Failed(task.number, failure_of(error), given_up)
        if not encoded.places:
            self._memory.give_back()
        slot = self._memory.slot
        new_bytes = slot.num_bytes if slot is not None and not slot.is_known else 0
        number = None if slot is None else slot.number
        return Made(task.number, encoded, number, new_bytes, given_up, time.perf_counter() - began, then)

    def _batches(self, task: Task) -> tuple[Encoded, Failure | None]:
        if (ask := self._filling.ask_for(lambda: task.positions)) is not None:
            ask()
        job = self._filling.plan(task.positions, task.sizes, task.epoch)
        job.fill()
        batches: list[Any] = []
        then = None
        try:
            batches.extend(job.batches())
        except Exception as error:
            if not batches:
                raise
            then = failure_of(error)
        return encode(batches, self._memory), then


def _end_with(parent: int, *, at_once: bool) -> None:
    """End this process when its parent does, however that ends, and whatever this one is doing.

    at_once: by the kernel, which looks at the thread that made this process: only where that lives as long.
    """
    if at_once and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    mine = os.getppid()  # with a fork server that is another one than `parent`

    def watch() -> None:
        while os.getppid() == mine and (mine == parent or _is_alive(parent)):
            time.sleep(_LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="precompile-parent", daemon=True).start()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
