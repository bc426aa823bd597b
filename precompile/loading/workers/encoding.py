"""A batch <-> a short message and shared memory: tensors and arrays lie in the memory, all else is pickled."""

from __future__ import annotations

import io
import math
import pickle
from typing import Any, NamedTuple

import numpy as np
import torch

from precompile.format.schema import align
from precompile.loading.workers.slots import Slot, SlotMemory


class Place(NamedTuple):
    """A tensor in shared memory, or, if `is_array`, a numpy array."""

    offset: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    is_array: bool

    @property
    def num_bytes(self) -> int:
        """From the first element to behind the last."""
        return _span(self.size, self.stride) * self.dtype.itemsize


class Encoded(NamedTuple):
    pickled: bytes
    places: tuple[Place, ...]


def encode(batch: Any, memory: SlotMemory) -> Encoded:
    """Put a batch's tensors into the memory's slot, unless they were made there."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(batch)
    for tensor, _ in pickler.found:
        if not memory.has_given(tensor.data_ptr(), _num_bytes(tensor)):
            memory.ask(_num_bytes(tensor))
    places = _placed(pickler.found, memory.slot) if memory.slot is not None else None
    if places is None and pickler.found:
        slot = memory.move_to_larger(sum(align(_num_bytes(tensor)) for tensor, _ in pickler.found))
        places = _placed(pickler.found, slot)
        assert places is not None
    return Encoded(buffer.getvalue(), tuple(places or ()))


def decode(encoded: Encoded, memory: np.ndarray | None) -> Any:
    """The batch; its tensors look at `memory`, uint8 (bytes,), each by a reference of its own."""
    unpickler = _Unpickler(io.BytesIO(encoded.pickled))
    unpickler.values = [_value(place, memory) for place in encoded.places]
    return unpickler.load()


class _Pickler(pickle.Pickler):
    """Leaves out tensors and arrays, and remembers them."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.found: list[tuple[torch.Tensor, bool]] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no other value gets the id of one that is gone

    def persistent_id(self, value: Any) -> int | None:
        is_array = type(value) is np.ndarray and value.dtype.kind in "biuf" and value.dtype.isnative
        if not is_array and not (type(value) is torch.Tensor and _is_plain(value)):
            return None
        number = self._numbers.setdefault(id(value), len(self.found))
        if number == len(self.found):
            try:
                tensor = torch.from_numpy(value if value.flags.writeable else value.copy()) if is_array else value
            except (TypeError, ValueError):  # a dtype or a stride that torch has not
                del self._numbers[id(value)]
                return None
            self.found.append((tensor, is_array))
            self._alive.append(value)
        return number


class _Unpickler(pickle.Unpickler):
    values: list[Any]

    def persistent_load(self, number: int) -> Any:
        return self.values[number]


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.requires_grad
        and not tensor.is_nested
        and not tensor.is_mkldnn
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _placed(tensors: list[tuple[torch.Tensor, bool]], slot: Slot) -> list[Place] | None:
    """Where each lies in the slot, after a copy where needed; None when they do not all fit."""
    places = []
    for tensor, is_array in tensors:
        size, stride = tuple(tensor.size()), tuple(tensor.stride())
        offset = slot.place_of(tensor.data_ptr(), _span(size, stride) * tensor.element_size())
        if offset is None:
            stride = _dense_stride(tensor)
            taken = slot.take(_span(size, stride) * tensor.element_size())
            if taken is None:
                return None
            offset = taken.ctypes.data - slot.file.array.ctypes.data
            _look(taken, tensor.dtype, size, stride).copy_(tensor)
        places.append(Place(offset, tensor.dtype, size, stride, is_array))
    return places


def _num_bytes(tensor: torch.Tensor) -> int:
    """Of a dense copy."""
    return _span(tuple(tensor.size()), _dense_stride(tensor)) * tensor.element_size()


def _dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The tensor's own stride if its elements fill their memory, such as of channels_last; else that of C order."""
    size, stride = tuple(tensor.size()), tuple(tensor.stride())
    if math.prod(size) == _span(size, stride) and all(step > 0 for step in stride):
        return stride
    steps, step = [], 1
    for length in reversed(size):
        steps.append(step)
        step *= max(length, 1)
    return tuple(reversed(steps))


def _span(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to behind the last."""
    return 0 if 0 in size else 1 + sum((length - 1) * step for length, step in zip(size, stride))


def _look(data: np.ndarray, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    if 0 in size:
        return torch.empty(size, dtype=dtype)
    return torch.from_numpy(data).view(dtype).as_strided(size, stride)


def _value(place: Place, memory: np.ndarray | None) -> Any:
    data = np.empty(0, np.uint8) if memory is None else memory[place.offset : place.offset + place.num_bytes]
    tensor = _look(data, place.dtype, place.size, place.stride)
    return tensor.numpy() if place.is_array else tensor
