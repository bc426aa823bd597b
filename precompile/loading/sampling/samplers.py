"""A sampler of positions: a shuffle in constant memory, split over ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

from precompile.loading.sampling.epoch_sampler import EpochSampler
from precompile.loading.sampling.orders import READ_TOGETHER, InterleavedOrder, Order
from precompile.loading.sampling.permutation import Permutation
from precompile.loading.sampling.ranks import Rank, Ranks, checked_integer

_MOST_RANKS = 1 << 20


class PositionSampler(EpochSampler[int]):
    """Gives positions one by one; reads them in parts."""

    def _items(self, order: Order) -> Iterator[int]:
        for start in range(0, len(order), READ_TOGETHER):
            yield from order.read(start, min(start + READ_TOGETHER, len(order))).tolist()


class ShuffleSampler(PositionSampler):
    """All positions in an order that is a function of (seed, epoch), split exactly over the ranks.

    Memory: a little up to 32,768 positions, beyond that none. Rank r of w reads the places r, r + w, r + 2w, … of
    the global order. A run may go on with another number of ranks: nothing is repeated or left out but by `remainder`.

    Args:
        dataset: any dataset with a length, or the number of its samples.
        shuffle: False reads in source order, split over the ranks all the same.
        rank, world_size: of torch.distributed when it is initialised, else 0 and 1. Give both or neither.
        remainder: `pad` repeats positions from the beginning of the order until all ranks have equally many; `drop`
            leaves out the last ones of the order.

    Raises ValueError for a value out of its range.
    """

    def __init__(
        self,
        dataset: Sized | int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        remainder: str = "pad",
    ) -> None:
        super().__init__(count_of(dataset), seed, Ranks(rank, world_size, remainder))
        self.shuffle = bool(shuffle)
        self._content = _content_of(dataset)

    def _identity(self, rank: Rank) -> dict[str, Any]:
        return {"shuffle": self.shuffle, "content": self._content}

    def _advanced(self, start: int, consumed: int, world_size: int) -> int:
        return start + consumed * world_size

    def _furthest(self, epoch: int, rank: Rank) -> int:
        return self.count + _MOST_RANKS  # `pad` of however many ranks there were

    def _length(self, epoch: int, start: int, rank: Rank) -> int:
        return len(InterleavedOrder(None, self.count, start, rank))

    def _order(self, epoch: int, start: int, rank: Rank) -> Order:
        permutation = Permutation(self.count, self.seed, epoch) if self.shuffle else None
        return InterleavedOrder(permutation, self.count, start, rank)


def _content_of(dataset: Any) -> str | None:
    """What tells a compiled dataset from another of the same length; None for what is none."""
    fingerprint = getattr(dataset, "fingerprint", None)
    return f"{fingerprint} {dataset.split or 'all'}" if isinstance(fingerprint, str) else None


def count_of(dataset: Sized | int) -> int:
    """The number of samples of a dataset, or of one that is given as its number."""
    return len(dataset) if isinstance(dataset, Sized) else checked_integer("the number of samples", dataset, 0)
