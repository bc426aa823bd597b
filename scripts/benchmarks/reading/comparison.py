"""Two ways to read the same samples, in turn: their rates, and the ratio of the two in every round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from reading.question import Answer, Question
from reading.settings import Settings

Run: TypeAlias = Callable[[int], AbstractContextManager[Callable[[], int]]]
"""Prepares one epoch, shuffled by the seed, and cleans up behind it. What is called in between is timed, and returns
how many samples it read."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A row whose figure is a ratio of two rates."""

    question: Question
    runs: Callable[[Any], tuple[Run, Run]]
    """Data -> what is measured, and its reference."""

    def figure(self, rate: float, reference: float) -> float:
        """The share of the reference's rate, or, where an upper limit is asked, the multiple of its time."""
        return rate / reference if self.question.at_most is None else reference / rate


@dataclass(frozen=True, slots=True)
class Comparisons:
    """Cases (see question.py) on the same data, interleaved: a machine whose speed drifts slows all alike."""

    rows: Callable[[Settings], Sequence[Comparison]]
    data: Callable[[Path, Settings], AbstractContextManager[Any]]
    """A folder on the disk -> where the rows' runs find their data."""

    def questions(self, settings: Settings) -> Sequence[Question]:
        return [row.question for row in self.rows(settings)]

    def answers(self, questions: Sequence[Question], settings: Settings, folder: Path) -> Iterator[Answer]:
        rows = [row for row in self.rows(settings) if row.question in questions]
        with self.data(folder, settings) as data:
            pairs = [row.runs(data) for row in rows]
            rounds = range(settings.warm_up + settings.rounds)
            rates = [[_rates(pair, number, settings) for pair in pairs] for number in rounds][settings.warm_up :]
        for row, of_row in zip(rows, zip(*rates)):
            yield Answer(row.question, [row.figure(*both) for both in of_row], [rate for rate, _ in of_row])


def _rates(pair: tuple[Run, Run], number: int, settings: Settings) -> tuple[float, float]:
    """Of one round: the reference directly before the other, or directly after it in every second round."""
    order = (0, 1) if number % 2 else (1, 0)
    rates = {which: _rate(pair[which], 1000 * number, settings.min_seconds) for which in order}
    return rates[0], rates[1]


def _rate(run: Run, seed: int, min_seconds: float) -> float:
    """Samples per second."""
    timed = [_timed(run, seed)]
    while sum(seconds for _, seconds in timed) < min_seconds:
        timed.append(_timed(run, seed + len(timed)))
    samples, seconds = map(sum, zip(*timed))
    return samples / seconds


def _timed(run: Run, seed: int) -> tuple[int, float]:
    """Samples and seconds of one epoch."""
    with run(seed) as epoch:
        began = time.perf_counter()
        samples = epoch()
        return samples, time.perf_counter() - began
