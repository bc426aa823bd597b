"""Cases on samples whose length varies: padded batches of spectrograms against copies of the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precompile import CompiledDataset
from precompile.format.schema import FieldSpec
from reading import references, runs, sets
from reading.comparison import Comparison, Comparisons
from reading.question import Question
from reading.settings import Settings

SPEC = FieldSpec("spectrogram", "float16", (80, None))
MIN_FRAMES, MAX_FRAMES = 300, 3000


@dataclass(frozen=True, slots=True)
class Spectrograms:
    dataset: CompiledDataset
    plain: np.ndarray
    """uint8 (bytes,): all records one behind the other, in a map."""
    lengths: np.ndarray
    """int64 (n,), bytes of each record."""
    batch_size: int


@contextmanager
def data(folder: Path, settings: Settings) -> Iterator[Spectrograms]:
    frames = np.random.default_rng(0).integers(MIN_FRAMES, MAX_FRAMES + 1, settings.spectrograms)
    dataset = sets.write(folder / "spectrograms", SPEC, settings.spectrograms, sizes=frames)
    plain = sets.plain_copy(dataset, folder / "plain")
    yield Spectrograms(dataset, plain, frames * 2 * 80, settings.spectrogram_batch_size)


def rows(settings: Settings) -> Sequence[Comparison]:
    title = f"padded batches of {settings.spectrogram_batch_size}"
    return [
        Comparison(
            Question("spectrograms", f"{title} / one memcpy of the padded bytes", at_least=0.7),
            lambda s: (
                runs.loader(s.dataset, s.batch_size),
                references.copy_padded(s.plain, s.lengths, s.batch_size),
            ),
        ),
        Comparison(
            Question("spectrograms", f"{title} / one memcpy a record, unpadded"),
            lambda s: (
                runs.loader(s.dataset, s.batch_size),
                references.copy_records(s.plain, s.lengths, s.batch_size),
            ),
        ),
    ]


CASES = (Comparisons(rows, data),)
