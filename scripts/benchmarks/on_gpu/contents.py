"""Whether every batch on the device has the bytes that lie on the disk, whatever the device is busy with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from on_gpu.gpu import Gpu
from on_gpu.settings import Row, Settings
from precompile import CompiledDataset, Loader
from precompile.loading.devices.resident import ResidentDataset, to_tensors
from precompile.loading.reading.collate import Padded

FIELDS = ("image", "label")
_MAX_BUSY_MS = 20.0
_MAX_KEPT = 8


class Checksums:
    """A number for each sample, which no other content is likely to have; padding does not count.

    dataset: one array field, the first, and a column or nothing.
    """

    def __init__(self, dataset: CompiledDataset, device: torch.device) -> None:
        samples = [dataset[index] for index in range(len(dataset))]
        arrays = [_as_integers(_array(sample)) for sample in samples]
        longest = np.max([array.shape for array in arrays], axis=0).tolist()
        weights = torch.arange(1, 2 * int(np.prod(longest)), 2, dtype=torch.int64).view(longest) * 2654435761
        self.expected = torch.stack([_weighted(array[None], weights)[0] for array in arrays])
        self.labels = torch.tensor([sample[1] if isinstance(sample, tuple) else 0 for sample in samples])
        self._weights = weights.to(device)

    def of(self, batch: Any) -> torch.Tensor:
        """int64 (batch,): queued on the current stream."""
        parts = _as_integers(_array(batch)).split(32)  # a product takes eight times the bytes of an image
        return torch.cat([_weighted(part, self._weights) for part in parts])


def _array(batch: Any) -> torch.Tensor:
    array = batch[0] if isinstance(batch, tuple) and not isinstance(batch, Padded) else batch
    return array.data if isinstance(array, Padded) else array


def _as_integers(array: torch.Tensor) -> torch.Tensor:
    return array.view(torch.int16) if array.dtype == torch.float16 else array


def _weighted(batch: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    cut = weights[tuple(slice(size) for size in batch.shape[1:])]
    return (batch.long() * cut).flatten(1).sum(1)


class Epoch:
    """What a consumer saw of an epoch: checksums, computed when the device has time, and batches that it kept."""

    def __init__(self, gpu: Gpu, checksums: Checksums, rng: np.random.Generator) -> None:
        self._gpu, self._checksums, self._rng = gpu, checksums, rng
        self._seen: list[tuple[np.ndarray, torch.Tensor, torch.Tensor | None]] = []
        self._kept: list[tuple[np.ndarray, Any]] = []

    def see(self, positions: np.ndarray, batch: Any) -> None:
        """Reads the batch, later than the device has anything to do with it; keeps, spoils or drops it."""
        if self._rng.random() < 0.5:
            self._gpu.busy(self._rng.uniform(0, _MAX_BUSY_MS))
        self._look(positions, batch)
        what = self._rng.random()
        if what < 0.4:
            self._kept.append((positions, batch))
        elif what < 0.7:
            _array(batch).fill_(1)  # a consumer's right, and nobody else's loss
        if len(self._kept) > _MAX_KEPT or self._rng.random() < 0.3:
            self._look_again(int(self._rng.integers(len(self._kept) or 1)))

    def _look_again(self, which: int) -> None:
        if which < len(self._kept):
            self._look(*self._kept.pop(which))

    def _look(self, positions: np.ndarray, batch: Any) -> None:
        labels = batch[1].clone() if isinstance(batch, tuple) and not isinstance(batch, Padded) else None
        self._seen.append((positions, self._checksums.of(batch), labels))

    def wrong(self) -> int:
        """How many samples were not what they should be."""
        while self._kept:
            self._look_again(0)
        self._gpu.finish()
        count = 0
        for positions, checksums, labels in self._seen:
            wrong = checksums.cpu() != self._checksums.expected[positions]
            if labels is not None:
                wrong |= labels.cpu() != self._checksums.labels[positions]
            count += int(wrong.sum())
        return count


def check_contents(
    gpu: Gpu, images: CompiledDataset, spectrograms: CompiledDataset, settings: Settings
) -> Iterator[Row]:
    """Epochs of all samples, by Loader and from `to_tensors`, with long kernels before the reading of a batch."""
    for name, dataset in (("images, labels", images), ("padded spectrograms", spectrograms)):
        checksums = Checksums(dataset, gpu.device)
        for source, what in ((dataset, f"Loader, {name}"), (to_tensors(dataset, gpu.device), f"to_tensors, {name}")):
            wrong = sum(_wrong(gpu, source, checksums, number, settings) for number in range(settings.epochs))
            seen = settings.epochs * len(dataset)
            yield Row(f"{what}: content", f"{wrong:,} of {seen:,} samples wrong", (wrong,), wrong == 0)


def _wrong(gpu: Gpu, source: CompiledDataset | ResidentDataset, checksums: Checksums, number: int,
           settings: Settings) -> int:  # fmt: skip
    """Samples that were wrong in an epoch, in an order of its own, with one of the ways to set up a Loader."""
    rng = np.random.default_rng(number)
    order = rng.permutation(len(source))
    share = 1 if source.fields == FIELDS else 4  # spectrograms are larger
    if number % 4 == 3:
        share *= 16  # several small batches are filled, and sent, from one buffer
    batch_size = max(1, settings.batch_size // share)
    options = {"sampler": order, "threads": 1 + number % 2, "prefetch": number % 5}
    if isinstance(source, CompiledDataset):
        options["device"] = gpu.device
    with gpu.own_stream() if number % 3 == 2 else nullcontext():
        epoch = Epoch(gpu, checksums, rng)
        loader = Loader(source, batch_size, **options)
        for start, batch in zip(range(0, len(order), batch_size), loader, strict=True):
            epoch.see(order[start : start + batch_size], batch)
            del batch
        return epoch.wrong()
