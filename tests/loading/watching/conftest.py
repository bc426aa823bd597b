"""Where loaders stall without stalling the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stalls import Outcome, Stage


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


@pytest.fixture
def stall(stage: Stage, tmp_path: Path) -> Callable[..., Outcome]:
    """stall(name, argument=None): what became of a scenario of stalls.py."""

    def run(name: str, argument: Path | None = None) -> Outcome:
        if argument is not None:
            return stage.run(name, tmp_path, argument)
        if name not in _DONE:
            _DONE[name] = stage.run(name, tmp_path)
        return _DONE[name]

    return run


_DONE: dict[str, Outcome] = {}
"""Several tests look at one outcome."""
