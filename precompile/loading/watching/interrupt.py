"""Raising an exception in a thread that waits.

The main thread is interrupted by a signal: Python's handler of it raises, and a call of the system that waits returns
to see to it. Other threads cannot be interrupted inside of a call; the exception comes as soon as the call ends by
itself (torch's DataLoader looks up every 5 s). C code that neither ends nor looks for signals is not interrupted.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precompile.loading.watching.waiting import Waiting

SIGNAL: int = getattr(signal, "SIGRTMAX", 64) - 4
"""A real-time signal without a meaning of its own, and not the one that asks for stacks. Only this process sends it to
itself, and only while its handler is installed."""


class Interrupted(BaseException):
    """The end of a wait. No `except Exception` of a loader takes it for a failure of its own."""


class _Handler:
    """Of the signal. It is there as long as an iteration that began in the main thread goes on."""

    def __init__(self) -> None:
        self.users: list[Waiting] = []
        self.previous: Any = None
        self.is_installed = False

    def add(self, waiting: Waiting) -> None:
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGRTMAX"):
            return
        if not self.is_installed:
            if signal.getsignal(SIGNAL) is None:  # somebody's in C, which could not be put back
                return
            self.previous = signal.signal(SIGNAL, self)
            self.is_installed = True
        if waiting not in self.users:  # as in a forked child
            self.users.append(waiting)

    def remove(self, waiting: Waiting) -> None:
        """After the monitor of that iteration has ended, so that no signal is under way."""
        if waiting in self.users:
            self.users.remove(waiting)
        is_main = threading.current_thread() is threading.main_thread()
        if self.is_installed and not self.users and is_main:
            with contextlib.suppress(TypeError, ValueError):  # the interpreter ends
                signal.signal(SIGNAL, self.previous)
            self.is_installed = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, under the GIL, so no wait ends in between."""
        for waiting in self.users:
            if waiting.is_interrupted and waiting.since is not None:
                waiting.was_raised = True
                raise waiting.interrupted
        if callable(self.previous):
            self.previous(number, frame)


_handler = _Handler()
add, remove = _handler.add, _handler.remove


def send(waiting: Waiting) -> None:
    """While the caller knows that the wait goes on, and that it cannot end before this returns."""
    if _by_signal(waiting):
        signal.pthread_kill(waiting.thread, SIGNAL)
    else:
        _set_asynchronous(waiting.thread, waiting.interrupted)


def take_back(waiting: Waiting) -> None:
    """By the consumer itself."""
    if not _by_signal(waiting):
        _set_asynchronous(waiting.thread, None)


def _by_signal(waiting: Waiting) -> bool:
    return waiting in _handler.users and waiting.thread == threading.main_thread().ident


def _set_asynchronous(thread: int, exception: type[BaseException] | None) -> None:
    argument = ctypes.c_void_p(None) if exception is None else ctypes.py_object(exception)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), argument)
