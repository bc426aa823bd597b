"""A shuffle that reads long runs of the disk."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from precompile.loading.sampling.block_order import BlockOrder, ShuffledRuns
from precompile.loading.sampling.orders import Order
from precompile.loading.sampling.ranks import Rank, Ranks, checked_integer
from precompile.loading.sampling.samplers import PositionSampler
from precompile.loading.sampling.storage_order import StorageOrder, storage_order
from precompile.loading.sampling.subset import unwrap


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

    @property
    def _run_samples(self) -> int:
        return max(1, int(self.run_bytes / max(1.0, self._storage.mean_record_bytes)))

    def _identity(self, rank: Rank) -> dict[str, Any]:
        return {
            "run_bytes": self.run_bytes,
            "window_runs": self.window_runs,
            "world_size": rank.world_size,
            "remainder": rank.remainder,
            "storage": self._checksum,
            "run_samples": self._run_samples,
        }

    def _length(self, epoch: int, start: int, rank: Rank) -> int:
        return max(0, rank.share(self.count) - start)

    def _order(self, epoch: int, start: int, rank: Rank) -> Order:
        runs = ShuffledRuns(self._storage, self._run_samples, (self.seed, epoch))
        return BlockOrder(runs, self.window_runs, (self.seed, epoch), rank, start)
