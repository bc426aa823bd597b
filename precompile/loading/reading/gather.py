"""Many pieces of the shard map -> one buffer, in one call that releases the GIL once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from precompile.format.schema import ALIGNMENT
from precompile.format.shards import ShardMap

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class RowGather:
    """Copies rows of `row_bytes` from any places that are multiples of `alignment` (a power of two), in one call.

    All shards are one range of addresses, so one strided view over it has every possible row as a row, and one
    `index_select` copies a whole batch. Rows are read as the widest words that divide them: of rows with 32,768
    elements or more torch would copy each by several threads.
    """

    def __init__(self, shards: ShardMap, row_bytes: int, *, alignment: int = ALIGNMENT) -> None:
        self.row_bytes = row_bytes
        self._shards = shards
        self._shift = alignment.bit_length() - 1
        self._word = next(size for size in _WORDS if row_bytes % size == 0 and alignment % size == 0)
        self._rows: torch.Tensor | None = None
        if shards.window is not None and len(shards.window) >= row_bytes:
            words = torch.from_numpy(shards.window[: len(shards.window) // 8 * 8]).view(_WORDS[self._word])
            num_rows = (8 * (len(shards.window) // 8) - row_bytes) // alignment + 1
            self._rows = torch.as_strided(words, (num_rows, row_bytes // self._word), (alignment // self._word, 1))

    def plan(self, places: np.ndarray, out: np.ndarray) -> Callable[[], object]:
        """What copies the rows at `places`, int64 (n,), each within a shard, into `out`, uint8 (≥ n * row_bytes,).

        All but the copy is done now: in a thread that copies, each step of Python finds the caches full of pixels.
        """
        count = len(places)
        used = out[: count * self.row_bytes]
        if self._rows is None:
            return lambda: self._copy_one_by_one(places, used.reshape(count, self.row_bytes))
        words = torch.from_numpy(used).view(_WORDS[self._word]).view(count, -1)
        rows = torch.from_numpy(places >> self._shift if self._shift else places)
        return functools.partial(torch.index_select, self._rows, 0, rows, out=words)

    def _copy_one_by_one(self, places: np.ndarray, rows: np.ndarray) -> None:
        for row, place in zip(rows, places.tolist()):
            row[:] = self._shards.view(place, self.row_bytes)


@dataclass(slots=True)
class BoxCopies:
    """Copies of boxes of any sizes between the shard map and a buffer, done at once by `run`.

    Planning costs some microseconds a box; running releases the GIL once.
    """

    shards: ShardMap
    out: np.ndarray
    background: Callable[[], None] | None = None
    """Fills the buffer before anything is copied into it."""
    _to: list[torch.Tensor] = field(default_factory=list)
    _from: list[torch.Tensor] = field(default_factory=list)
    _zero: list[torch.Tensor] = field(default_factory=list)

    def copy(self, place: int, source: Strided, offset: int, target: Strided) -> None:
        """Plan one box: the bytes from `place`, and where they go in the buffer. Both of the same size."""
        window, start = self.shards.window, place
        if window is None:
            window, start = self.shards.view(place, source.span).copy(), 0  # torch takes no read-only memory
        self._from.append(_view(window, source, start))
        self._to.append(_view(self.out, target, offset))

    def zero(self, offset: int, target: Strided) -> None:
        """Plan a box of zeros in the buffer."""
        if 0 not in target.size:
            self._zero.append(_view(self.out, target, offset))

    def run(self) -> None:
        if self.background:
            self.background()
        if self._to:
            torch._foreach_copy_(self._to, self._from)
        if self._zero:
            torch._foreach_zero_(self._zero)


@dataclass(frozen=True, slots=True)
class Strided:
    """A box of bytes: sizes and strides in bytes, outermost axis first; the innermost stride is 1."""

    size: Sequence[int]
    stride: Sequence[int]

    @property
    def span(self) -> int:
        """Bytes from the first to behind the last."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.size, self.stride))


def _view(data: np.ndarray, box: Strided, offset: int) -> torch.Tensor:
    return torch.from_numpy(data).as_strided(box.size, box.stride, offset)
