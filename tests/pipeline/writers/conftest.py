"""Writing shards of random records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from precompile.pipeline.writers import open_writer

Write = Callable[[str, Path, list[np.ndarray]], np.ndarray]


def make_records(lengths: list[int], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.frombuffer(rng.bytes(length), np.uint8) for length in lengths]


@pytest.fixture(scope="session")
def records() -> Callable[[list[int]], list[np.ndarray]]:
    """records(lengths): random bytes."""
    return make_records


@pytest.fixture(scope="session")
def write() -> Write:
    """write(store, path, records): the shard is committed; returns the offsets."""

    def write(store: str, path: Path, records: list[np.ndarray]) -> np.ndarray:
        writer = open_writer(store, path)
        for record in records:
            writer.append(record)
        return writer.commit()

    return write
