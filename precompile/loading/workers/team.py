"""Worker processes, seen from the loader that has them."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import multiprocessing
import os
import select
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

from precompile import machine
from precompile.errors import LoaderStalled, WorkerDiedError
from precompile.loading.watching.dead_workers import OomKills, describe, gather, oom_kills
from precompile.loading.watching.patience import Patience
from precompile.loading.watching.wait import Wait
from precompile.loading.watching.worker_processes import Worker, Workers
from precompile.loading.workers.encoding import decode
from precompile.loading.workers.member import Member
from precompile.loading.workers.messages import Begun, Failed, Made, Task, exception_of
from precompile.loading.workers.worker import Setup

_END_SECONDS = 2.0
"""For a worker that is told to end, before it is killed."""


class Team:
    """Workers that make batches, started with the first task. They end with `stop`, with this object, and with this
    process. `submit` and the tickets may be used by different threads.

    After a fork the child has workers of its own, for the same tasks.
    """

    def __init__(self, count: int, setup: Setup, *, patience: Patience, start_method: str | None = None) -> None:
        self._count, self._setup, self._patience = count, setup, patience
        methods = multiprocessing.get_all_start_methods()
        if start_method not in (None, *methods):
            raise ValueError(f"start_method must be one of {', '.join(methods)}, got start_method={start_method!r}")
        self._context: BaseContext = multiprocessing.get_context(start_method)
        self.seconds_per_sample: float | None = None
        """As long as the batch took that came last."""
        self._process = -1
        self._members: list[Member] = []
        self._kills = OomKills(None, None)
        self._numbers = itertools.count()
        self._tickets: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()
        self._submitting, self._reading = threading.Lock(), threading.Lock()

    def submit(self, positions: np.ndarray, sizes: list[int], epoch: int) -> Ticket:
        """Have some batches made; int64 positions of all, and how many of each."""
        ticket = Ticket(self, positions, sizes, epoch)
        try:
            self._give(ticket)
        except BaseException:
            self.stop(at_once=True)
            raise
        return ticket

    def workers(self) -> Workers:
        """The processes, for who watches them."""
        method = self._context.get_start_method() or ""
        members = self._members if self._is_here else []
        return Workers(tuple(Worker(f"worker {one.number}", one.pid, one.process, method) for one in members))

    @property
    def _is_here(self) -> bool:
        return self._process == os.getpid()

    def _give(self, ticket: Ticket) -> None:
        if not self._is_here:
            self._start()
        with self._submitting:
            ticket.number, ticket.process = next(self._numbers), self._process
            ticket.member = min(self._members, key=lambda member: member.num_open)
            self._tickets[ticket.number] = ticket
            ticket.member.give(Task(ticket.number, ticket.positions, ticket.sizes, ticket.epoch, [], []))

    def _start(self) -> None:
        # In a forked process, threads of the parent may hold the old ones.
        self._submitting, self._reading = threading.Lock(), threading.Lock()
        self._tickets = weakref.WeakValueDictionary()
        if self._count > (cpus := machine.usable_cpus()):
            warnings.warn(f"workers={self._count}, but this process may use {cpus} CPUs: more only fight", stacklevel=2)
        self._process, self._members, self._kills = os.getpid(), [], oom_kills()
        _teams.add(self)
        try:
            for number in range(self._count):
                self._members.append(Member(number, self._setup, self._context))
        except BaseException:
            self.stop()
            raise

    def wait(self, ticket: Ticket) -> None:
        """Until its answer is there. Raises WorkerDiedError, LoaderStalled, or what kept the workers from starting."""
        waiting = None
        try:
            if ticket.process != os.getpid():
                self._give(ticket)
            while ticket.answer is None:
                with self._reading:
                    is_quiet = ticket.answer is None and not self._read(self._patience.look_seconds)
                if is_quiet and waiting is None:
                    waiting = self._patience.begin(self.workers)
                elif is_quiet and waiting is not None:
                    self._look(waiting)
        except BaseException:  # an interrupt may have come in the middle of a message
            self.stop(at_once=True)
            raise

    def _look(self, waiting: Wait) -> None:
        try:
            waiting.look()
        except LoaderStalled:
            with self._reading:
                if not self._read(0):  # looking takes a second, in which it may have come
                    raise

    def _read(self, seconds: float) -> bool:
        """Take what the workers have sent, or wait some time for something to come. Whether something came."""
        members = self._members
        if not members:
            raise RuntimeError("the workers of this Loader were stopped, so it gives no more batches")
        poll = select.poll()
        for member in members:
            member.channel.flush()
            poll.register(member.channel, select.POLLIN | (select.POLLOUT if member.channel.has_unsent else 0))
            poll.register(member.process.sentinel, select.POLLIN)
        ready = dict(poll.poll(seconds * 1000))
        for member in members:
            if ready.get(member.channel.fileno(), 0) & (select.POLLIN | select.POLLHUP | select.POLLERR):
                self._take(member)
            elif member.process.sentinel in ready:
                raise self._died(member, EOFError("its process has ended"))
        return bool(ready)

    def _take(self, member: Member) -> None:
        try:
            taken = member.take()
        except (EOFError, OSError) as error:
            raise self._died(member, error) from None
        if taken is None:
            return
        answer, memory = taken
        if isinstance(answer, Begun):
            return
        if answer.number < 0:
            assert isinstance(answer, Failed)
            self.stop()
            raise exception_of(answer.failure, member.name)
        ticket = self._tickets.pop(answer.number, None)
        if ticket is not None:
            ticket.memory, ticket.answer = memory, answer
            if isinstance(answer, Made):
                self.seconds_per_sample = answer.seconds / max(1, len(ticket.positions))

    def _died(self, member: Member, error: Exception) -> WorkerDiedError:
        member.process.join(_END_SECONDS)
        code = member.process.exitcode
        died = WorkerDiedError(f"{member.name}: {error}" if code is None else self._obituary(member, code))
        self.stop()
        return died

    def _obituary(self, member: Member, code: int) -> str:
        if not member.has_begun and code > 0:
            return (
                f"{member.name} could not start (exit code {code}); its own message is above. With start method spawn "
                'or forkserver a script needs `if __name__ == "__main__":` around what it does, and functions that '
                'workers call must be in a file that can be imported; start_method="fork" needs neither'
            )
        ended = describe([(f"worker {member.number}", member.pid or -1, code)], gather(self._kills))
        seen = member.last_activity()
        if seen is None or seen.first < 0 or seen.is_idle:
            return ended
        count = f" and {seen.count - 1} more" if seen.count > 1 else ""
        return f"{ended} It was reading sample {seen.first}{count} of {seen.root} (generation {seen.generation})."

    def lose_held(self) -> None:
        for member in self._members if self._is_here else ():
            member.lose_held()

    def forget_in_child(self) -> None:
        """In a forked process: its workers are the parent's."""
        for member in self._members:
            member.forget_in_child()

    def stop(self, *, at_once: bool = False) -> None:
        """End the workers, and wait for that. What they have not sent is lost. at_once: without waiting for samples."""
        members, self._members = self._members, []
        if not self._is_here:
            return
        self._process = -1
        _end(members, 0 if at_once else _END_SECONDS)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.stop()


class Ticket:
    """Some batches that a worker makes."""

    def __init__(self, team: Team, positions: np.ndarray, sizes: list[int], epoch: int) -> None:
        self._team = team
        self.positions, self.sizes, self.epoch = positions, sizes, epoch
        self.number, self.process = -1, -1
        self.member: Member | None = None
        self.answer: Made | Failed | None = None
        self.memory: np.ndarray | None = None

    def wait(self) -> None:
        """Until they are made; raises what the worker raised."""
        self._team.wait(self)
        if isinstance(self.answer, Failed):
            assert self.member is not None
            raise exception_of(self.answer.failure, self.member.name)

    def batches(self) -> Iterator[Any]:
        """After `wait`, once."""
        assert isinstance(self.answer, Made)
        encoded, then, memory = self.answer.batches, self.answer.then, self.memory
        self.memory = None
        yield from decode(encoded, memory)
        if then is not None:
            assert self.member is not None
            raise exception_of(then, self.member.name)


def _end(members: Sequence[Member], seconds: float) -> None:
    until = time.monotonic() + seconds
    for member in members:
        member.channel.close()
    try:
        for member in members:
            member.end(until)
    except BaseException:  # an interrupt
        for member in members:
            member.end(0)
        raise


_teams: weakref.WeakSet[Team] = weakref.WeakSet()


def _lose_held() -> None:
    """A child has the batches that its parent had; when it lets go of them is not seen here."""
    for team in list(_teams):
        team.lose_held()


def _forget_in_child() -> None:
    for team in list(_teams):
        team.forget_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_lose_held, after_in_child=_forget_in_child)


@atexit.register
def _end_all() -> None:
    """Before multiprocessing waits for its children, of which one that is stopped would never end."""
    for team in list(_teams):
        team.stop()
