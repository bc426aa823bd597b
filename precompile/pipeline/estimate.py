"""How much a build will write, from a few probed inputs or from the generation before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precompile.pipeline.executors.worker import Probed
from precompile.pipeline.plan import Plan
from precompile.pipeline.reuse import NONE, Reuse


@dataclass(frozen=True, slots=True)
class Expected:
    """Bytes of records."""

    written: int
    """If every input of the work had to be stored."""
    needed: int
    """Without inputs that most likely turn out to be known: those of the same name and size."""


def expected_bytes(plan: Plan, reuse: Reuse, order: np.ndarray, probed: Probed | None) -> Expected:
    """order: the inputs to be compiled or copied. probed: None takes the generation before as the example."""
    copied = order[reuse.copies[order] != NONE]
    compiled = order[reuse.copies[order] == NONE]
    earlier = reuse.earlier
    copy_bytes = 0
    if earlier is not None:
        copy_bytes = int(earlier.index.record[reuse.copies[copied], 2].sum())
        record_bytes, input_bytes = earlier.index.record[:, 2], np.maximum(earlier.stat[:, 0], 0)
    else:
        assert probed is not None
        record_bytes, input_bytes = np.array(probed.record_bytes, np.int64), np.array(probed.input_bytes, np.int64)
    if not len(record_bytes):
        return Expected(copy_bytes, copy_bytes)
    new = compiled[~reuse.likely[compiled]]
    each = record_bytes[0] if (record_bytes == record_bytes[0]).all() else None
    growth = record_bytes.sum() / max(1, input_bytes.sum())

    def of(inputs: np.ndarray) -> int:
        if each is not None:
            return int(each) * len(inputs) + copy_bytes
        return int(growth * np.maximum(plan.stat[inputs, 0], 0).sum()) + copy_bytes

    return Expected(of(compiled), of(new))
