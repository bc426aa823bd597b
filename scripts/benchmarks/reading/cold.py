"""Cases of cold data: shuffled epochs of a dataset none of whose pages is in memory, against a read from end to end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from precompile import BlockShuffleSampler, CompiledDataset, Loader, ShuffleSampler
from precompile.format.schema import FieldSpec
from reading import sets
from reading.comparison import Comparison, Comparisons, Run
from reading.page_cache import drop_pages
from reading.question import Question
from reading.references import read_through
from reading.runs import num_samples
from reading.settings import Settings

SPEC = FieldSpec("image", "uint8", (3, 224, 224))


@dataclass(frozen=True, slots=True)
class Cold:
    """A dataset of one shard: the file that the reference reads."""

    root: Path
    count: int
    batch_size: int

    @property
    def shards(self) -> list[Path]:
        return sorted((self.root / "shards").iterdir())

    def loader(self, sampler: type[ShuffleSampler] | type[BlockShuffleSampler]) -> Run:
        """Epochs in the order of a sampler, each of a dataset just opened."""

        @contextmanager
        def prepared(seed: int) -> Iterator[Callable[[], int]]:
            gc.collect()  # pages that are still mapped cannot be dropped
            drop_pages([path for path in self.root.rglob("*") if path.is_file()])
            dataset = CompiledDataset(self.root, fields="image")
            batches = Loader(dataset, self.batch_size, sampler=sampler(dataset, seed=seed))
            yield lambda: sum(num_samples(batch) for batch in batches)

        return prepared

    def sequential(self) -> Run:
        @contextmanager
        def prepared(seed: int) -> Iterator[Callable[[], int]]:
            gc.collect()
            drop_pages(self.shards)

            def epoch() -> int:
                read_through(self.shards)
                return self.count

            yield epoch

        return prepared


@contextmanager
def data(folder: Path, settings: Settings) -> Iterator[Cold]:
    sets.write(folder / "cold", SPEC, settings.pictures, num_shards=1)
    yield Cold(folder / "cold", settings.pictures, settings.batch_size)


def rows(settings: Settings) -> Sequence[Comparison]:
    return [
        Comparison(
            Question(case, f"cold, {what} / sequential pread of 1 MiB", at_least=asked),
            lambda cold, sampler=sampler: (cold.loader(sampler), cold.sequential()),
        )
        for case, what, sampler, asked in (
            ("cold-shuffle", "full shuffle", ShuffleSampler, 0.75),
            ("cold-block", "block shuffle", BlockShuffleSampler, 0.85),
        )
    ]


CASES = (Comparisons(rows, data),)
