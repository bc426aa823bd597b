"""Compiling some inputs of a plan in a temporary folder, beside any dataset."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from precompile.format.index import save_column
from precompile.pipeline.compile_input import Job
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.plan import Plan
from precompile.pipeline.reuse import Known, Reuse


@contextlib.contextmanager
def scratch(plan: Plan, inputs: np.ndarray, job: Job) -> Iterator[Job]:
    """A job whose input i is `inputs[i]` of the plan, of which nothing is known from earlier; for an executor.

    inputs: int64. job: of the plan; its recipe, media and source are taken over. The folder is deleted at the end.
    """
    with tempfile.TemporaryDirectory(prefix="precompile-") as folder:
        dirs = BuildDirs(Path(folder))
        for directory in (dirs.shards, dirs.plan, dirs.receipts, dirs.unfinished, dirs.workers):
            directory.mkdir(parents=True)
        _excerpt(plan, inputs).save(dirs.plan)
        save_column(dirs.plan, "order", np.arange(len(inputs)))
        nothing = Reuse.nothing(len(inputs))
        nothing.save(dirs.plan)
        Known.of(nothing).save(dirs.plan)
        yield replace(job, root=dirs.root, count=len(inputs), earlier=None)


def _excerpt(plan: Plan, inputs: np.ndarray) -> Plan:
    """What compiling needs of some inputs: neither columns nor splits."""
    listing = replace(
        plan.listing,
        keys=plan.keys.take(inputs),
        locations=plan.listing.locations.take(inputs),
        stat=plan.stat[inputs],
        split=plan.listing.split[inputs],
        columns={},
    )
    return Plan(listing, plan.source_index[inputs], splits=(), seed=None)
