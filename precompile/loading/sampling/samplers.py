"""Samplers of positions: a shuffle in constant memory, and one that reads long runs of the disk."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from functools import cached_property
from typing import Any

from precompile.loading.sampling.block_order import BlockOrder, ShuffledRuns
from precompile.loading.sampling.epoch_sampler import EpochSampler
from precompile.loading.sampling.orders import READ_TOGETHER, InterleavedOrder, Order
from precompile.loading.sampling.permutation import Permutation
from precompile.loading.sampling.ranks import Rank, Ranks, checked_integer
from precompile.loading.sampling.storage_order import StorageOrder, storage_order
from precompile.loading.sampling.subset import unwrap


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
        self.shuffle = shuffle

    def _identity(self, rank: Rank) -> dict[str, Any]:
        return {"shuffle": self.shuffle}

    def _advanced(self, start: int, consumed: int, world_size: int) -> int:
        return start + consumed * world_size

    def _length(self, epoch: int, start: int, rank: Rank) -> int:
        return len(InterleavedOrder(None, self.count, start, rank))

    def _order(self, epoch: int, start: int, rank: Rank) -> Order:
        permutation = Permutation(self.count, self.seed, epoch) if self.shuffle else None
        return InterleavedOrder(permutation, self.count, start, rank)


class BlockShuffleSampler(PositionSampler):
    """A shuffle for datasets larger than memory: the disk reads long runs instead of single records.

    The samples, as they lie on disk, are cut to runs of about `run_bytes`, another cut each epoch. The runs are
    shuffled over the whole dataset, and the samples within a window of about `window_runs` runs. So the page cache
    needs room for two windows (of 512 MiB by default), and a batch mixes samples of hundreds of runs.

    Every rank reads a share of the runs of its own. Shares are equally long: with `pad` neighbours share a sample
    where the count does not divide, with `drop` the last few samples of the order are left out. A state goes on with
    the same number of ranks only. Memory: 4 bytes a sample, or none when samples lie in source order.

    Args:
        dataset: a CompiledDataset or a torch Subset of one.
        rank, world_size: of torch.distributed when it is initialised, else 0 and 1. Give both or neither.

    Raises TypeError for another dataset, ValueError for a value out of its range.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int = 0,
        run_bytes: int = 1 << 20,
        window_runs: int = 512,
        rank: int | None = None,
        world_size: int | None = None,
        remainder: str = "pad",
    ) -> None:
        unwrap(dataset)
        super().__init__(len(dataset), seed, Ranks(rank, world_size, remainder))
        self.dataset = dataset
        self.run_bytes = checked_integer("run_bytes", run_bytes, 1)
        self.window_runs = checked_integer("window_runs", window_runs, 1)

    @cached_property
    def _storage(self) -> StorageOrder:
        return storage_order(self.dataset)

    @cached_property
    def _checksum(self) -> int:
        return self._storage.checksum()

    def _identity(self, rank: Rank) -> dict[str, Any]:
        return {
            "run_bytes": self.run_bytes,
            "window_runs": self.window_runs,
            "world_size": rank.world_size,
            "remainder": rank.remainder,
            "storage": self._checksum,
        }

    def _length(self, epoch: int, start: int, rank: Rank) -> int:
        return max(0, rank.share(self.count) - start)

    def _order(self, epoch: int, start: int, rank: Rank) -> Order:
        run_samples = max(1, int(self.run_bytes / max(1.0, self._storage.mean_record_bytes)))
        runs = ShuffledRuns(self._storage, run_samples, (self.seed, epoch))
        return BlockOrder(runs, self.window_runs, (self.seed, epoch), rank, start)


def count_of(dataset: Sized | int) -> int:
    """The number of samples of a dataset, or of one that is given as its number."""
    return len(dataset) if isinstance(dataset, Sized) else checked_integer("the number of samples", dataset, 0)
