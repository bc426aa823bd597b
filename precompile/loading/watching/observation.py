"""Everything that can be seen of a loader that stalls, collected within about a second."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from precompile import machine
from precompile.errors import PrecompileError
from precompile.format.generation import generation_dir, read_generation
from precompile.format.index import Index
from precompile.loading.processes.activity import Activity, read_activity
from precompile.loading.processes.stacks import stacks_of
from precompile.loading.watching.limited import Limited, within
from precompile.loading.watching.process_state import (
    GONE,
    ProcessState,
    cpu_shares,
    mount_type,
    state_of,
    where_it_waits,
)
from precompile.loading.watching.python_stack import Frame, frames_of_main
from precompile.loading.watching.waiting import Waiting
from precompile.loading.watching.worker_processes import Worker, Workers, exit_code

_SAMPLE_SECONDS = 0.15
_STACKS_SECONDS = 0.9
"""For all workers together."""
_KEYS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One process."""

    worker: Worker
    state: ProcessState
    cpu_share: float
    exit_code: int | None
    """How it ended."""
    waits_in: str
    library: str
    file: str
    activity: Activity | None
    key: str
    """Of the sample it works on; empty when it is not known."""
    filesystem: str
    """Of what it reads; empty when it is not known."""
    stacks: str | None
    frames: tuple[Frame, ...]
    """Of its main thread, or of the consumer in this process, the innermost first."""
    is_consumer: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    what: str
    """What the consumer waits for."""
    consumer: Seen
    workers: tuple[Seen, ...]
    num_more: int
    are_guessed: bool
    at: float


def observe(waiting: Waiting, workers: Workers, *, in_depth: bool) -> Observation:
    """With stacks and keys, if `in_depth`."""
    consumer = Worker("this process", os.getpid())
    everybody = (consumer, *workers.known)
    states = {worker.pid: state_of(worker.pid) for worker in everybody}
    waits = _where_all_wait(waiting, everybody)
    activities = {worker.pid: _activity(worker.pid) for worker in everybody}
    places = {pid: _place(activities[pid], waits[pid][2]) for pid in states}
    filesystems = {place: _filesystem(place) for place in set(places.values()) if place}
    keys = _Keys(activities) if in_depth else None
    shares = cpu_shares(list(states), _SAMPLE_SECONDS)
    stacks = _all_stacks(workers) if in_depth else {}
    found = keys.found() if keys is not None else {}

    def seen(worker: Worker) -> Seen:
        pid, place = worker.pid, places[worker.pid]
        is_consumer = worker is consumer
        kind = (filesystems[place].value(0.05) or mount_type(place)) if place else ""
        text = own_stacks(waiting.thread) if is_consumer else stacks.get(pid)
        frames = _frames_of_thread(waiting.thread) if is_consumer else frames_of_main(text or "")
        return Seen(worker, states[pid], shares.get(pid, 0.0), exit_code(worker), *waits[pid], activities[pid],
                    found.get(pid, ""), kind, text, frames, is_consumer)  # fmt: skip

    return Observation(waiting.what(), seen(consumer), tuple(seen(worker) for worker in workers.known),
                       workers.num_more, workers.are_guessed, time.monotonic())  # fmt: skip


def _filesystem(place: str) -> Limited[str]:
    return Limited(lambda: machine.filesystem(Path(place)), "")


def _activity(pid: int) -> Activity | None:
    return within(0.3, lambda: read_activity(pid), None)


def _wait_of(pid: int, thread: int) -> Limited[tuple[str, str, str]]:
    return Limited(lambda: where_it_waits(pid, thread), ("", "", ""))


def _where_all_wait(waiting: Waiting, everybody: Sequence[Worker]) -> dict[int, tuple[str, str, str]]:
    own = os.getpid()
    if waiting.thread != threading.main_thread().ident:  # whose native_id is that of the parent after a fork
        own = next((one.native_id for one in threading.enumerate() if one.ident == waiting.thread), None) or own
    asked = {one.pid: _wait_of(one.pid, own if one.pid == os.getpid() else one.pid) for one in everybody}
    until = time.monotonic() + 0.3
    return {pid: one.value(until - time.monotonic()) for pid, one in asked.items()}


def _place(activity: Activity | None, file: str) -> str:
    """The path whose file system matters: what a call is about, else the dataset that is read."""
    if file.startswith("/") and not file.startswith(("/memfd:", "/dev/shm/")):
        return file
    return "" if activity is None else activity.root


def _all_stacks(workers: Workers) -> dict[int, str | None]:
    until = time.monotonic() + _STACKS_SECONDS
    found: dict[int, str | None] = {}
    for left, worker in zip(range(len(workers.known), 0, -1), workers.known):
        share = max(0.02, (until - time.monotonic()) / min(left, 4))
        found[worker.pid] = stacks_of(worker.pid, share) if state_of(worker.pid) != GONE else None
    return found


class _Keys:
    """Keys of samples, which are being looked up from here on, in a thread: what hangs may be their file system."""

    def __init__(self, activities: dict[int, Activity | None]) -> None:
        self._until = time.monotonic() + _KEYS_SECONDS
        nothing: dict[int, str] = {}
        self._keys = Limited(lambda: _keys_of(activities), nothing)

    def found(self) -> dict[int, str]:
        return self._keys.value(self._until - time.monotonic())


def _keys_of(activities: dict[int, Activity | None]) -> dict[int, str]:
    """By opening the index of the dataset that they read."""
    found: dict[int, str] = {}
    opened: dict[tuple[str, int], Index] = {}
    for pid, activity in activities.items():
        if activity is None or not activity.root or activity.first < 0:
            continue
        name = (activity.root, activity.generation)
        with contextlib.suppress(PrecompileError, OSError, IndexError):  # such as a generation that was removed
            if name not in opened:
                opened[name] = _open_index(*name)
            found[pid] = str(opened[name].keys[activity.first])
    return found


def _open_index(root: str, generation: int) -> Index:
    manifest = read_generation(Path(root), generation)
    return Index(generation_dir(Path(root), generation), manifest.schema, manifest.count)


def own_stacks(consumer: int) -> str:
    """The stacks of all threads of this process, that of the consumer first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sorted(sys._current_frames().items(), key=lambda one: (one[0] != consumer, one[0])):
        name = names.get(ident, "unknown")
        if name.startswith("precompile-watch"):
            continue
        summary = traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)
        lines = [f'  File "{one.filename}", line {one.lineno} in {one.name}' for one in summary]
        mark = ", the consumer" if ident == consumer else ""
        parts.append("\n".join((f"Thread {name}{mark} (most recent call first):", *lines)))
    return "\n".join(parts)


def _frames_of_thread(ident: int) -> tuple[Frame, ...]:
    frame = sys._current_frames().get(ident)
    if frame is None:
        return ()
    summary = traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)
    return tuple(Frame(one.filename, one.lineno or 0, one.name) for one in summary)


def source_of(frame: Frame) -> str:
    """The line of source, where it can be read at once."""
    return within(0.2, lambda: linecache.getline(frame.file, frame.line).strip(), "")
