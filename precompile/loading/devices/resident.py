"""A small dataset wholly in the memory of a device, where batches are gathered."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data

from precompile import machine
from precompile.errors import NoRoomError
from precompile.format.schema import TEXT
from precompile.loading.dataset import CompiledDataset
from precompile.loading.devices.device import usable_device
from precompile.loading.devices.resident_fields import PaddedToLongest, ResidentField, Stacked, Texts
from precompile.loading.reading.collate import Padded
from precompile.loading.reading.form import Fields

_CHUNK_BYTES = 64 << 20


class ResidentDataset(torch.utils.data.Dataset[Any]):
    """What `to_tensors` makes: the samples of a dataset in the memory of `device`, in the form of its `fields`.

    Samples are as those of the dataset, with their tensors on the device. `batch` is what to train with, or a
    Loader, which calls it: one `index_select` a field on the current stream, and nothing that waits for the device.
    """

    def __init__(self, dataset: CompiledDataset, device: torch.device, values: dict[str, ResidentField]) -> None:
        self.dataset = dataset
        """What was read: its `classes`, `keys`, `lengths` and columns are those of this one."""
        self.device = device
        self._values = values
        self._count = len(dataset)

    @property
    def fields(self) -> Fields:
        return self.dataset.fields

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"ResidentDataset(on {self.device}, {self.dataset!r})"

    def __getitem__(self, index: int) -> Any:
        position = operator.index(index)
        if not -self._count <= position < self._count:
            raise IndexError(f"index {index} is out of range for {self._count} samples")
        batch = self._take(np.array([position % self._count], np.int64))
        return self.dataset.arrange({name: self._only(name, values) for name, values in batch.items()})

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[index] for index in indices]

    def collate(self, samples: Sequence[Any]) -> Any:
        """Samples -> a batch on the device, for a DataLoader's `collate_fn`. `batch` is many times faster."""
        values: dict[str, list[Any]] = {}
        for number, name in enumerate(self.dataset.field_names):
            key = name if self.fields is None else number
            values[name] = list(samples) if isinstance(self.fields, str) else [sample[key] for sample in samples]
        return self.dataset.arrange({name: self._values[name].collate(column) for name, column in values.items()})

    def batch(self, positions: np.ndarray) -> Any:
        """The samples at int64 (n,) positions from 0 to len(self) - 1, n ≥ 1, in new memory of the device.

        Raises IndexError for others. A field of varying shape is Padded to the longest of these samples.
        """
        low, high = int(positions.min()), int(positions.max())
        if not 0 <= low <= high < self._count:
            raise IndexError(f"positions must be from 0 to {self._count - 1}, got {low} to {high}")
        return self.dataset.arrange(self._take(positions))

    def _take(self, positions: np.ndarray) -> dict[str, Any]:
        index = torch.tensor(positions, dtype=torch.int64, device="cpu")
        if self.device.type == "cuda":
            # A copy from memory that is not pinned would wait for all that the device has to do.
            index = index.pin_memory().to(self.device, non_blocking=True)
        else:
            index = index.to(self.device)
        return {name: field.take(positions, index) for name, field in self._values.items()}

    def _only(self, name: str, values: Any) -> Any:
        """The sample in a batch of one."""
        value = values.data[0] if isinstance(values, Padded) else values[0]
        is_number = isinstance(value, torch.Tensor) and value.ndim == 0 and self.dataset.schema[name].is_column
        return value.item() if is_number else value


def to_tensors(dataset: CompiledDataset, device: str | torch.device) -> ResidentDataset:
    """Read all samples of a dataset to a device. A `transform` is applied here, once and for all.

    Where shapes vary, each sample takes the bytes of the largest. Text stays in host memory.

    Raises NoRoomError before it reads when they do not fit; RuntimeError for a device that cannot be used; ValueError
    for what is no device, without samples, or when a transform gives several shapes; TypeError when it gives no tensor.
    """
    where, count = usable_device(device), len(dataset)
    if not count:
        raise ValueError(f"{dataset.root}: there is no sample to read, split={dataset.split!r}")
    reading = copy.copy(dataset)  # its buffers end with this call
    values = {name: _field(dataset, name, value) for name, value in _read(reading, 0, 1).items()}
    need = sum(field.num_bytes for field in values.values())
    _check_room(dataset, need, where)
    for field in values.values():
        field.place(where)
    step = max(1, _CHUNK_BYTES * count // max(need, 1))
    for start in range(0, count, step):
        for name, chunk in _read(reading, start, min(start + step, count)).items():
            try:
                values[name].put(start, chunk)
            except ValueError as error:
                raise ValueError(f"{dataset.root}: field {name}, from sample {start} on: {error}") from None
    return ResidentDataset(dataset, where, values)


def _read(dataset: CompiledDataset, start: int, stop: int) -> dict[str, Any]:
    """Samples as a batch, by field; numbers in the dtype of their column."""
    batch = dataset.collate(dataset.__getitems__(range(start, stop)))
    parts = [batch] if isinstance(dataset.fields, str) else batch.values() if dataset.fields is None else batch
    values = dict(zip(dataset.field_names, parts))
    transformed = dataset.transform if isinstance(dataset.transform, Mapping) else {}
    for name in values:
        spec = dataset.schema[name]
        if spec.is_column and spec.dtype != TEXT and name not in transformed:
            values[name] = values[name].to(getattr(torch, spec.dtype))
    return values


def _field(dataset: CompiledDataset, name: str, value: Any) -> ResidentField:
    if isinstance(value, Padded):
        lengths = np.array(dataset.lengths(name), np.int64).reshape(len(dataset), -1)
        return PaddedToLongest(value, lengths, dataset.schema[name].varying_axes)
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return Stacked(value, len(dataset))
    if isinstance(value, list) and isinstance(value[0], str):
        return Texts()
    raise TypeError(f"{dataset.root}: expected tensors, numbers or text to hold on a device, "
                    f"got {type(value).__name__} for field {name}")  # fmt: skip


def _check_room(dataset: CompiledDataset, need: int, device: torch.device) -> None:
    have = None
    if device.type == "cpu":
        have = machine.memory().available_bytes
    elif device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        have = torch.cuda.mem_get_info(device)[0] + cached
    if have is not None and need > have:
        raise NoRoomError(
            f"{dataset.root}: {len(dataset):,} samples need {need / 1e6:,.0f} MB on {device}, {have / 1e6:,.0f} MB are "
            "free; give the dataset itself to a Loader, or choose fewer fields or a split"
        )
