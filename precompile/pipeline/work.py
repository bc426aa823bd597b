"""What a build has to do: the inputs of a plan that cannot be taken over as they lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precompile.format.index import save_column
from precompile.pipeline.checksum import values_checksum
from precompile.pipeline.earlier import Earlier
from precompile.pipeline.plan import Plan
from precompile.pipeline.reuse import NONE, Known, Reuse
from precompile.pipeline.storage import sync_files


@dataclass(frozen=True, slots=True)
class Work:
    """A plan, what of it is taken over, and the order of the rest."""

    plan: Plan
    reuse: Reuse
    order: np.ndarray
    """int64 (inputs,): in the order in which they are placed in shards."""
    bounds: np.ndarray
    """int64 (k + 1,): the first k tasks, whose cut is known before anything is compiled; [0] for none."""
    identity: str
    """Equal for equal plan, recipe, libraries and reuse: receipts of an interrupted build are then good."""

    @classmethod
    def of(cls, plan: Plan, reuse: Reuse, recipe_digest: str) -> Work:
        is_work = reuse.is_work
        order, bounds = np.empty(0, np.int64), np.zeros(1, np.int64)
        if reuse.earlier is not None and (reuse.damaged != NONE).any():
            order, bounds = _as_it_lay(reuse.earlier, reuse.damaged)
            is_work[order] = False
        if is_work.any():
            order = np.concatenate([order, plan.order[is_work[plan.order]]])
        before = reuse.earlier.manifest.fingerprint if reuse.earlier is not None else ""
        identity = values_checksum(plan.digest, recipe_digest, plan.paths, before, reuse.rows, order)
        return cls(plan, reuse, order, bounds, identity)

    def save(self, directory: Path) -> None:
        """Write what workers map; see WorkList, `open_copies` and Known. Durable when it returns."""
        self.plan.save(directory)
        save_column(directory, "order", self.order)
        self.reuse.save(directory)
        Known.of(self.reuse).save(directory)
        sync_files(directory)

    def to_compile(self) -> np.ndarray:
        """int64: the inputs that are not merely copied, in source order."""
        return np.sort(self.order[self.reuse.copies[self.order] == NONE])


def _as_it_lay(earlier: Earlier, damaged: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One task for each damaged shard, in the order of its records: from an unchanged source the same file comes out,
    and takes the place of the damaged one. Inputs that shared a record with another one are left to other tasks."""
    inputs = np.flatnonzero(damaged != NONE)
    shard, offset, _ = earlier.index.record[damaged[inputs]].T
    order = np.lexsort((offset, shard))
    shard, offset, inputs = shard[order], offset[order], inputs[order]
    is_first = np.ones(len(inputs), bool)
    is_first[1:] = (shard[1:] != shard[:-1]) | (offset[1:] != offset[:-1])
    cuts = np.flatnonzero(np.diff(shard[is_first])) + 1
    return inputs[is_first], np.concatenate([[0], cuts, [is_first.sum()]]).astype(np.int64)
