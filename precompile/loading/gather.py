"""Many records -> one batch, in as few C calls as possible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from precompile.errors import FormatError
from precompile.format import record
from precompile.format.schema import ALIGNMENT, FieldSpec
from precompile.format.stored import Stored
from precompile.loading.collate import Padded, pad, stack

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class FixedGather:
    """Gathers one array field whose samples all have one shape.

    All shards are one range of addresses and every field starts at a multiple of 64, so one strided view over
    the range has each field as a row, and one `index_select` copies a whole batch and releases the GIL once.
    Rows are read as the widest words that divide them: with bytes, torch would start threads inside each row.
    """

    def __init__(self, stored: Stored, spec: FieldSpec) -> None:
        assert spec.is_fixed
        self._stored = stored
        self._shards = stored.shards
        self._spec = spec
        self._shape: record.Shape = spec.complete(spec.shape)  # type: ignore[arg-type]
        self._offset = stored.field_offset(spec.name)
        self.row_bytes = record.field_bytes(spec, self._shape)
        self._word = next(size for size in _WORDS if self.row_bytes % size == 0)
        self._rows = None if self._shards.window is None else self._as_rows(self._shards.window)

    def _as_rows(self, window: np.ndarray) -> torch.Tensor | None:
        words = torch.from_numpy(window).view(_WORDS[self._word])
        num_rows = (len(window) - self._offset - self.row_bytes) // ALIGNMENT + 1
        if num_rows < 1:
            return None  # no record of this size fits a shard: every place will be refused
        size, stride = (num_rows, self.row_bytes // self._word), (ALIGNMENT // self._word, 1)
        return torch.as_strided(words, size, stride, self._offset // self._word)

    def fill(self, places: np.ndarray, buffer: np.ndarray) -> None:
        """Copy the field of the records at `places`, int64 (n,), into `buffer`, uint8 (≥ n * row_bytes,)."""
        count = len(places)
        used = buffer[: count * self.row_bytes]
        if self._rows is None:
            for row, place in zip(used.reshape(count, self.row_bytes), places.tolist()):
                row[:] = self._shards.view(place + self._offset, self.row_bytes)
            return
        out = torch.from_numpy(used).view(_WORDS[self._word]).view(count, -1)
        torch.index_select(self._rows, 0, torch.from_numpy(places // ALIGNMENT), out=out)

    def batch(self, buffer: np.ndarray, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop` of a filled buffer as a tensor (stop - start, *shape); no copy but for bmp."""
        spec = self._spec
        if spec.encoding == "bmp":
            rows = buffer[start * self.row_bytes : stop * self.row_bytes].reshape(-1, self.row_bytes)
            try:
                return torch.from_numpy(record.decode_field(spec, rows, self._shape))
            except FormatError as error:
                raise self._stored.undecodable(f"a batch of {len(rows)} samples", error) from None
        whole = torch.from_numpy(buffer)
        words = whole[start * self.row_bytes : stop * self.row_bytes].view(getattr(torch, spec.dtype))
        if spec.encoding == "raw_hwc":
            channels, height, width = self._shape
            return words.view(-1, height, width, channels).permute(0, 3, 1, 2)
        return words.view(-1, *self._shape)


def gather_padded(stored: Stored, spec: FieldSpec, indices: Sequence[int]) -> Padded | torch.Tensor:
    """One array field of a schema that varies: padded with zeros to the largest sample, or stacked if it is fixed."""
    arrays = [stored.array(index, spec.name) for index in indices]
    return stack(arrays) if spec.is_fixed else pad(arrays, spec.varying_axes)
