"""What a Loader is given: checked, and brought into one form."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from precompile.loading.sampling.batching import EpochSource, IterableSampler
from precompile.loading.sampling.samplers import ShuffleSampler


def epoch_sampler(sampler: Any, dataset: Any, batch_size: int | None, *, shuffle: bool, seed: int) -> EpochSource:
    is_ours = isinstance(sampler, EpochSource)
    if batch_size is None and (sampler is None or (is_ours and not getattr(sampler, "gives_batches", False))):
        raise ValueError(
            "batch_size must be an integer of at least 1, got batch_size=None without a sampler of batches"
        )
    if sampler is None:
        return ShuffleSampler(dataset, shuffle=shuffle, seed=seed, rank=0, world_size=1)
    if is_ours:
        count = getattr(sampler, "count", len(dataset))
        if count != len(dataset):
            raise ValueError(f"the sampler is for {count} samples, the dataset has {len(dataset)}")
        return sampler  # type: ignore[no-any-return]
    if isinstance(sampler, Iterator):
        raise TypeError("the sampler must be iterable once per epoch, got an iterator, which is empty after the first")
    return IterableSampler(sampler, gives_batches=batch_size is None)


def checked_timeout(timeout: float | None) -> float | None:
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and 0 < timeout < threading.TIMEOUT_MAX):
        raise ValueError(f"timeout must be a number of seconds above 0, or None for ever, got timeout={timeout!r}")
    return timeout


_ELSEWHERE = {
    "num_workers": "threads= copy (1 is nearly always enough), workers= are processes for a transform in Python",
    "pin_memory": 'device="cuda" pins, and copies while a step runs',
    "collate_fn": "it is called collate=",
    "batch_sampler": "give it as sampler=, with batch_size=None",
    "prefetch_factor": "prefetch= is the number of batches in all",
    "persistent_workers": "workers always stay from epoch to epoch",
    "multiprocessing_context": "it is called start_method=",
    "worker_init_fn": "workers have one thread per library already",
    "generator": "seed= chooses the shuffle",
}
"""Of torch's DataLoader."""


def unknown_arguments(given: Mapping[str, Any]) -> str:
    hints = "".join(f"; {name}: {_ELSEWHERE[name]}" for name in given if name in _ELSEWHERE)
    return f"Loader has no argument {', '.join(given)}{hints}"
