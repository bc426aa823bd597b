"""What a loader and its worker processes tell each other."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from typing import NamedTuple

import numpy as np

from precompile.loading.workers.encoding import Encoded


class Task(NamedTuple):
    """Batches to be made."""

    number: int
    positions: np.ndarray
    """int64 (n,), of all batches."""
    sizes: list[int]
    epoch: int
    freed: list[int]
    """Slots of the worker that nobody looks at any more."""
    lost: list[int]
    """Slots that a forked process may look at for as long as it lives."""


class Begun(NamedTuple):
    """The first message of a worker that has started."""

    has_page: bool
    """Whether the descriptor of its activity page comes next."""


class Made(NamedTuple):
    """The answer to a task: its batches, in a slot of the worker."""

    number: int
    batches: Encoded
    slot: int | None
    new_slot_bytes: int
    """When the parent does not know the slot yet, which then gets its descriptor next; else 0."""
    given_up: list[int]
    """Slots that the worker will not use again."""
    seconds: float
    """That it took."""
    then: Failure | None = None
    """What the batch behind these raised."""


class Failed(NamedTuple):
    """The answer to a task, or to the start (number -1), that raised before there was a batch."""

    number: int
    failure: Failure
    given_up: list[int]


class Failure(NamedTuple):
    """An exception of a worker."""

    pickled: bytes | None
    """The exception, if it can be pickled."""
    text: str
    """With its traceback."""
    summary: str


def failure_of(error: BaseException) -> Failure:
    text, summary = f"{type(error).__name__}, whose traceback cannot be written", type(error).__name__
    with contextlib.suppress(BaseException):  # its own code runs here
        text = "".join(traceback.format_exception(error))
        summary = f"{summary}: {error}"
    return Failure(_pickled(error), text, summary)


def _pickled(error: BaseException) -> bytes | None:
    """None for an exception that would not come out as what it was; its own code may run here, and raise anything."""
    with contextlib.suppress(BaseException):
        pickled = pickle.dumps(error)
        if type(pickle.loads(pickled)) is type(error):
            return pickled
    return None


def exception_of(failure: Failure, worker: str) -> BaseException:
    """The worker's exception, of its own class where that can be, with the traceback of the worker as a note."""
    error: BaseException | None = None
    if failure.pickled is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(failure.pickled)
    if not isinstance(error, Exception):  # SystemExit would end this process without a word
        error = RuntimeError(failure.summary)
        error.add_note(
            "It is a RuntimeError here because the worker's own exception cannot be pickled, or is no Exception"
        )
    error.add_note(f"Raised in {worker}, where the traceback was:\n{failure.text.rstrip()}")
    return error
