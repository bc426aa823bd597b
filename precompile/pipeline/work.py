"""What a build has to do: the inputs of a plan that cannot be taken over as they lie."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precompile.errors import FormatError
from precompile.format.files import read_whole
from precompile.format.index import save_column
from precompile.pipeline.checksum import values_checksum
from precompile.pipeline.earlier import Earlier
from precompile.pipeline.journal import Receipt
from precompile.pipeline.plan import Plan
from precompile.pipeline.reuse import NONE, Known, Reuse
from precompile.pipeline.storage import empty_dir, sync_files, write_atomically

_NAME = "plan.json"
_MAX_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Work:
    """A plan, what of it is taken over, and the order of the rest."""

    plan: Plan
    reuse: Reuse
    order: np.ndarray
    """int64 (inputs,): in the order in which they are placed in shards."""
    bounds: np.ndarray
    """int64 (k + 1,): the first k tasks, whose cut is known before anything is compiled; [0] for none."""
    kept: tuple[Receipt, ...]
    """What builds that were interrupted before the source changed have finished."""
    content: str
    """Digest of what decides the stored bytes, other than the files."""
    identity: str
    """Equal for equal plan, recipe, libraries and reuse: receipts of an interrupted build are then good."""

    @classmethod
    def of(
        cls, plan: Plan, reuse: Reuse, content: str, *, kept: tuple[Receipt, ...] = (), rebuild: bool = False
    ) -> Work:
        is_work = reuse.is_work
        for receipt in kept:
            is_work[receipt.samples] = False
        order, bounds = np.empty(0, np.int64), np.zeros(1, np.int64)
        if reuse.earlier is not None and (reuse.damaged != NONE).any():
            order, bounds = _as_it_lay(reuse.earlier, reuse.damaged)
            is_work[order] = False
        if is_work.any():
            order = np.concatenate([order, plan.order[is_work[plan.order]]])
        before = reuse.earlier.manifest.fingerprint if reuse.earlier is not None else ""
        identity = values_checksum(plan.digest, content, plan.paths, before, repr(rebuild), reuse.rows, order)
        return cls(plan, reuse, order, bounds, kept, content, identity)

    def read_bounds(self, directory: Path) -> np.ndarray | None:
        """int64 (tasks + 1,): where an interrupted build of the same work has cut it, if there was one."""
        facts = _read_facts(directory)
        try:
            return np.array(facts["bounds"], np.int64) if facts["identity"] == self.identity else None
        except (ValueError, KeyError, TypeError):
            return None

    def is_of_same_content(self, directory: Path) -> bool:
        """Whether the work that is saved there, of perhaps other files, made the same bytes of equal files."""
        return _read_facts(directory).get("content") == self.content

    def save_bounds(self, directory: Path, bounds: np.ndarray) -> None:
        """From now on receipts are those of this work."""
        facts = {"identity": self.identity, "content": self.content, "bounds": bounds.tolist()}
        write_atomically(directory / _NAME, json.dumps(facts).encode())

    def save(self, directory: Path) -> None:
        """Write what workers map; see WorkList, `open_copies` and Known. Durable when it returns."""
        (directory / _NAME).unlink(missing_ok=True)  # first of all: it vouches for the rest
        empty_dir(directory)
        self.plan.save(directory)
        save_column(directory, "order", self.order)
        self.reuse.save(directory)
        Known.of(self.reuse).save(directory)
        sync_files(directory)

    def to_compile(self) -> np.ndarray:
        """int64: the inputs that are not merely copied, in source order."""
        return np.sort(self.order[self.reuse.copies[self.order] == NONE])


def _read_facts(directory: Path) -> dict[str, Any]:
    try:
        facts = json.loads(read_whole(directory / _NAME, _MAX_BYTES))
    except (OSError, ValueError, RecursionError, FormatError):
        return {}
    return facts if isinstance(facts, dict) else {}


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
