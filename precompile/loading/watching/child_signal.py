"""What torch raises when a worker dies: by a handler of SIGCHLD, so in whatever the main thread is doing then."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol


class Explains(Protocol):
    def died(self, error: Exception) -> Exception | None:
        """What to raise in place of it; None when this has another reason."""
        ...


class _Handler:
    """Calls the handler of before, and explains what that raises."""

    def __init__(self, previous: Callable[[int, FrameType | None], Any]) -> None:
        self.previous = previous

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.previous(number, frame)
        except RuntimeError as error:
            for user in list(_users):
                died = user.died(error)
                if died is not None:
                    raise died from error
            raise


_users: weakref.WeakSet[Explains] = weakref.WeakSet()


def add(user: Explains) -> None:
    """In the main thread, once the loader has begun; elsewhere nothing happens."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        return
    current = signal.getsignal(signal.SIGCHLD)
    if not callable(current):  # no loader has set one
        return
    _users.add(user)
    if not isinstance(current, _Handler):
        signal.signal(signal.SIGCHLD, _Handler(current))


def remove(user: Explains) -> None:
    _users.discard(user)
    if _users or threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        return
    current = signal.getsignal(signal.SIGCHLD)
    if isinstance(current, _Handler):  # else somebody's came later, and knows this one
        signal.signal(signal.SIGCHLD, current.previous)
