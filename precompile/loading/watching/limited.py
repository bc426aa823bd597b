"""Calls that may hang, such as into a file system that does not answer, with a limit of time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Limited(Generic[Value]):
    """A call in a thread of its own, which is left behind when it does not end."""

    def __init__(self, call: Callable[[], Value], otherwise: Value) -> None:
        self._call, self._value = call, otherwise
        self._thread = threading.Thread(target=self._run, name="precompile-watch-limited", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except Exception:  # what cannot be found out is left out of a report
            return

    def value(self, seconds: float) -> Value:
        """What it gave, or `otherwise` when it raised or has not ended in that time."""
        self._thread.join(max(0.0, seconds))
        return self._value

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()


def within(seconds: float, call: Callable[[], Value], otherwise: Value) -> Value:
    return Limited(call, otherwise).value(seconds)
