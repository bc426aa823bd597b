"""The case of worker processes: whether the memory that each has for itself grows over an epoch."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch.utils.data import DataLoader

from precompile import CompiledDataset
from precompile.format.schema import FieldSpec
from precompile.loading.sampling.samplers import ShuffleSampler
from reading import sets
from reading.private_memory import private_bytes
from reading.question import Answer, CannotMeasure, Question
from reading.settings import Settings

SPEC = FieldSpec("image", "uint8", (1, 8, 8))


class Workers:
    """See Cases in question.py."""

    def questions(self, settings: Settings) -> Sequence[Question]:
        title = f"{settings.workers} forked workers, {settings.tiny:,} samples: largest growth"
        return [Question("workers", title, at_most=2, unit="MB")]

    def answers(self, questions: Sequence[Question], settings: Settings, folder: Path) -> Iterator[Answer]:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise CannotMeasure("the system must have fork")
        dataset = sets.write(folder / "tiny", SPEC, settings.tiny)
        began = time.perf_counter()
        growth = _growth(dataset, settings)
        rate = len(dataset) / (time.perf_counter() - began)
        yield Answer(questions[0], [max(growth) / 1e6], [rate])


def _growth(dataset: CompiledDataset, settings: Settings) -> list[int]:
    """Bytes by which each worker grew between its first batches, the first hundredth, and the end of the epoch."""
    loader = DataLoader(
        dataset, settings.batch_size, sampler=ShuffleSampler(dataset), collate_fn=dataset.collate,
        num_workers=settings.workers, multiprocessing_context="fork", persistent_workers=True,
    )  # fmt: skip
    early = max(2 * settings.workers, len(loader) // 100)
    before: dict[int, int] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than CPUs: as meant
        for number, _ in enumerate(loader):
            if number == early:
                before = {worker.pid: private_bytes(worker.pid) for worker in multiprocessing.active_children()}
    return [private_bytes(pid) - first for pid, first in before.items()]


CASES = (Workers(),)
