"""Cases of opening: the time to the first batch, and the memory, of large datasets in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from precompile.format.schema import FieldSpec
from reading import sets
from reading.private_memory import private_bytes
from reading.question import Answer, Question
from reading.settings import Settings

SPEC = FieldSpec("image", "uint8", (3, 8, 8))
MILLION, HUGE = "open-1e6", "open-1e8"


class Opening:
    """See Cases in question.py."""

    def questions(self, settings: Settings) -> Sequence[Question]:
        huge = f"open {settings.sparse:,} samples, made sparse"
        return [
            Question(MILLION, f"open {settings.opened:,} samples, first batch", at_most=50, unit="ms"),
            Question(HUGE, huge, at_most=500, unit="ms"),
            Question(HUGE, f"{huge}: memory of its own", at_most=20, unit="MB"),
        ]

    def answers(self, questions: Sequence[Question], settings: Settings, folder: Path) -> Iterator[Answer]:
        private_bytes()  # raises here what it would raise in the processes
        cases = {question.case for question in questions}
        facts: dict[str, list[dict[str, Any]]] = {}
        if MILLION in cases:
            sets.write(folder / MILLION, SPEC, settings.opened)
            facts[MILLION] = _opened(settings, folder / MILLION, settings.batch_size)
        if HUGE in cases:
            sets.write_sparse(folder / HUGE, SPEC, settings.sparse)
            facts[HUGE] = _opened(settings, folder / HUGE)
        for question in questions:
            what = "milliseconds" if question.unit == "ms" else "megabytes"
            yield Answer(question, [fact[what] for fact in facts[question.case]])


def _opened(settings: Settings, *arguments: object) -> list[dict[str, Any]]:
    """What open_once.py found, once a round."""
    command = [sys.executable, "-m", "reading.open_once", *map(str, arguments)]
    beside = Path(__file__).resolve().parents[1]
    found = []
    for _ in range(settings.warm_up + settings.rounds):
        done = subprocess.run(command, cwd=beside, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout))
    return found[settings.warm_up :]


CASES = (Opening(),)
