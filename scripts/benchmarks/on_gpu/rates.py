"""Samples per second into the device, against what a copy of the same bytes from pinned memory reaches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from on_gpu.gpu import Gpu
from on_gpu.settings import Row, Settings
from precompile import CompiledDataset, Loader, machine
from precompile.loading.devices.resident import to_tensors

LIMIT = "copies of pinned memory"
_PINNED_BUFFERS = 3


def check_rates(gpu: Gpu, images: CompiledDataset, settings: Settings) -> Iterator[Row]:
    """All cases in turn, once a round, so that a machine whose speed drifts slows them alike."""
    cases = {LIMIT: _pinned_copies(gpu, images, settings), "Loader, host memory": _loader(images, settings)}
    for threads in (1, 2, 4, 8):
        if threads <= machine.usable_cpus():
            cases[f"Loader, device, threads={threads}"] = _loader(images, settings, device=gpu.device, threads=threads)
    cases["Loader, to_tensors"] = _loader(to_tensors(images, gpu.device), settings)
    rounds = [
        {name: _rate(gpu, epoch, 1000 * number, settings.min_seconds) for name, epoch in cases.items()}
        for number in range(1 + settings.rounds)
    ][1:]
    for name in cases:
        rate = statistics.median(rates[name] for rates in rounds)
        ratios = tuple(rates[name] / rates[LIMIT] for rates in rounds)
        found = f"{rate:>11,.0f} samples/s, {statistics.median(ratios):.2f} of the copies"
        yield Row(f"rate: {name}", found, tuple(rates[name] for rates in rounds))


def _rate(gpu: Gpu, epoch: Callable[[int], int], seed: int, min_seconds: float) -> float:
    gpu.finish()
    began, samples, epochs = time.perf_counter(), 0, 0
    while not epochs or time.perf_counter() - began < min_seconds:
        samples += epoch(seed + epochs)
        epochs += 1
        gpu.finish()
    return samples / (time.perf_counter() - began)


def _pinned_copies(gpu: Gpu, images: CompiledDataset, settings: Settings) -> Callable[[int], int]:
    """As many bytes, one asynchronous copy a batch, from buffers that nobody fills."""
    num_batches = len(images) // settings.batch_size
    num_bytes = settings.batch_size * images[0][0].numel()
    sources = [gpu.pinned(num_bytes).fill_(number) for number in range(_PINNED_BUFFERS)]

    def epoch(seed: int) -> int:
        for number in range(num_batches):
            sources[number % _PINNED_BUFFERS].to(gpu.device, non_blocking=True)
        return num_batches * settings.batch_size

    return epoch


def _loader(dataset: Any, settings: Settings, **options: Any) -> Callable[[int], int]:
    loader = Loader(dataset, settings.batch_size, shuffle=True, drop_last=True, **options)

    def epoch(seed: int) -> int:
        loader.set_epoch(seed)
        return sum(len(images) for images, _ in loader)

    return epoch
