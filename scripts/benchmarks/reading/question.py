"""What is asked, and what was found: the rows of the table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from reading.settings import Settings


class CannotMeasure(Exception):
    """This machine, or the folder that was chosen, lacks what a case needs; the text says what."""


@dataclass(frozen=True, slots=True)
class Question:
    """One row of the table."""

    case: str
    """Its name on the command line; rows may share one."""
    title: str
    at_least: float | None = None
    at_most: float | None = None
    """What the figure has to reach; neither where nothing is asked."""
    unit: str = ""
    """Of the figure: ms, MB, or nothing for a ratio."""

    @property
    def asked(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}{self._unit}"
        return "" if self.at_most is None else f"≤ {self.at_most:g}{self._unit}"

    def show(self, figure: float) -> str:
        return f"{figure:,.1f}{self._unit}" if self.unit else f"{figure:.2f}"

    @property
    def _unit(self) -> str:
        return f" {self.unit}" if self.unit else ""

    def met(self, figure: float) -> bool | None:
        """None where nothing is asked."""
        if self.at_least is not None:
            return figure >= self.at_least
        return None if self.at_most is None else figure <= self.at_most


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found: one figure, and where it makes sense one rate, per round."""

    question: Question
    figures: Sequence[float] = ()
    rates: Sequence[float] = ()
    """Samples per second."""
    not_measured: str = ""
    """Why there are no figures."""

    @property
    def figure(self) -> float | None:
        return statistics.median(self.figures) if self.figures else None

    @property
    def rate(self) -> float | None:
        return statistics.median(self.rates) if self.rates else None

    @property
    def verdict(self) -> str:
        if self.figure is None:
            return f"not measured: {self.not_measured}"
        met = self.question.met(self.figure)
        return "" if met is None else "met" if met else "not met"

    def to_json(self) -> dict[str, Any]:
        question = self.question
        return {
            "case": question.case, "title": question.title, "unit": question.unit,
            "at_least": question.at_least, "at_most": question.at_most,
            "samples_per_second": self.rate, "figure": self.figure,
            "met": None if self.figure is None else question.met(self.figure), "not_measured": self.not_measured,
            "rates": list(self.rates), "figures": list(self.figures),
        }  # fmt: skip


class Cases(Protocol):
    """Cases that share their data."""

    def questions(self, settings: Settings) -> Sequence[Question]: ...

    def answers(self, questions: Sequence[Question], settings: Settings, folder: Path) -> Iterator[Answer]:
        """Answers to some of the questions; `folder` is empty, on the disk, and removed afterwards."""
        ...
