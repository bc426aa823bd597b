"""Decoding inputs again, and comparing what comes out with what is stored."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from precompile import machine
from precompile.errors import SourceError
from precompile.format.generation import shard_path
from precompile.format.manifest import Shard
from precompile.pipeline.build import recipe_of
from precompile.pipeline.choose import choose
from precompile.pipeline.columns import differs, ids_of_labels, take
from precompile.pipeline.compile_input import Job
from precompile.pipeline.compile_shard import Task
from precompile.pipeline.earlier import Earlier, open_earlier
from precompile.pipeline.executors.limits import Limits
from precompile.pipeline.executors.local import LocalExecutor
from precompile.pipeline.finding import Finding
from precompile.pipeline.hold import hold
from precompile.pipeline.journal import Receipt
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.matching import match_keys
from precompile.pipeline.options import BuildOptions
from precompile.pipeline.plan import MISSING, Plan, cut_tasks, make_plan
from precompile.pipeline.quarantine import Quarantined
from precompile.pipeline.scratch import scratch
from precompile.pipeline.sources import open_source
from precompile.pipeline.versions import library_versions

_TASK_BYTES = 64 << 20
"""Compiled, compared and deleted at a time by each worker."""
_TASKS_A_WORKER = 4

_Found = Iterator[tuple[int, Finding]]
"""Each with the row of its sample."""


def compare_with_source(
    root: Path, *, count: int | None, source: str | None = None, options: BuildOptions | None = None
) -> tuple[list[Finding], int]:
    """Compile `count` samples again (None: all) in worker processes; returns the findings and how many were compiled.

    The samples are spread over classes and shards, findings are in the order of the dataset; it must have passed
    `verify`. source: where the raw files lie now, if they have moved.
    Raises SourceError when there is no source, or it has none of the samples, and what reading it raises.
    """
    with hold(root) as manifest:
        stored = open_earlier(root, manifest.generation, check=False)
        where = source or str(manifest.source.get("root") or "")
        if not where:
            raise SourceError("this dataset was built from a Python object; --against-source needs a folder or a table")
        recipe = recipe_of(manifest).model_copy(update={"missing": "quarantine"})
        raw = open_source(Path(where).absolute(), recipe)
        plan = make_plan(raw, recipe)
        rows, inputs = _match(stored, plan, count, where)
        is_there = (inputs >= 0) & (plan.stat[inputs, 0] != MISSING)
        comparison = _Comparison(stored, plan, rows[is_there], inputs[is_there])
        all_files = bool((np.diff(plan.paths.offsets) > 0).all())
        job = Job(root, recipe, raw.media, len(plan), None if all_files else raw)
        found = [*comparison.gone(rows[~is_there]), *comparison.told_otherwise()]
        found += comparison.compiled_again(job, options or BuildOptions())
    return [finding for _, finding in sorted(found, key=lambda pair: pair[0])], len(comparison.rows)


def _match(stored: Earlier, plan: Plan, count: int | None, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows to be compared, and the input of each, −1 where there is none."""
    label = stored.index.columns.get("label")
    rows = choose(stored.index.record[:, 0], label if isinstance(label, np.ndarray) else None, count)
    inputs = match_keys(plan.keys, stored.index.keys.take(rows))
    if (inputs < 0).all():
        raise SourceError(f"{where}: has none of the chosen samples, such as {stored.index.keys[int(rows[0])]!r}; keys "
                          "are paths relative to the source: give the folder or table that was compiled")  # fmt: skip
    return rows, inputs


class _Comparison:
    """Of some rows of a generation with the inputs that they came from."""

    def __init__(self, stored: Earlier, plan: Plan, rows: np.ndarray, inputs: np.ndarray) -> None:
        self._stored, self._plan = stored, plan
        self.rows, self._inputs = rows, inputs

    def gone(self, rows: np.ndarray) -> _Found:
        for row in rows.tolist():
            file = os.path.join(self._plan.listing.root, self._stored.index.keys[row])
            yield self._found(row, file, "is no longer in the source")

    def told_otherwise(self) -> _Found:
        """Labels and other columns that the source states."""
        stored, plan = self._stored, self._plan
        changed = {"label": self._relabelled()}
        for name in {*stored.manifest.source.get("columns", ()), *plan.columns} - {"label"}:
            now, then = plan.columns.get(name), stored.index.columns.get(name)
            changed[name] = differs(take(then, self.rows), take(now, self._inputs), len(self.rows))
        for place in np.flatnonzero(np.any(list(changed.values()), axis=0)).tolist():
            names = ", ".join(sorted(name for name, is_other in changed.items() if is_other[place]))
            what = f"the source now has another {names} for it; build again"
            yield self._of_input(place, what)

    def _relabelled(self) -> np.ndarray:
        ids: dict[str, int] = {}
        manifest, plan = self._stored.manifest, self._plan
        then = ids_of_labels(self._stored.index.columns.get("label"), self.rows, manifest.classes, ids)
        now = ids_of_labels(plan.columns.get("label"), self._inputs, plan.classes, ids)
        found: np.ndarray = then != now
        return found

    def compiled_again(self, job: Job, options: BuildOptions) -> _Found:
        count = len(self.rows)
        if not count:
            return
        workers = min(options.workers or machine.usable_cpus(), count)
        num_bytes = int(self._stored.index.record[self.rows, 2].sum())
        task_bytes = max(1, min(_TASK_BYTES, num_bytes // (workers * _TASKS_A_WORKER)))
        spans = itertools.pairwise(cut_tasks(count, num_bytes, task_bytes).tolist())
        tasks = [Task(number, *span, {}) for number, span in enumerate(spans)]
        with scratch(self._plan, self._inputs, job) as small:
            dirs, limits = BuildDirs(small.root), Limits(options.timeout_seconds)
            with LocalExecutor(
                small, dirs.workers, workers=workers, limits=limits, on_progress=lambda _: None
            ) as executor:
                for receipt in executor.run(tasks):
                    if receipt.shard is not None:
                        shard_path(dirs.root, receipt.shard.file).unlink(missing_ok=True)  # equal ones have one name
                    yield from self._compare(receipt)

    def _compare(self, receipt: Receipt) -> _Found:
        for place, failure in receipt.quarantined:
            yield self._of_input(place, self._why_failed(int(self.rows[place]), failure))
        rows, stored = self.rows[receipt.samples], self._stored
        same = (receipt.crc32 == stored.index.crc32[rows]) & (receipt.length == stored.index.record[rows, 2])
        shapes = stored.shapes(rows)
        for name, shape in receipt.shapes.items():
            same &= (shape == shapes[name]).all(axis=1)
        for name, column in receipt.columns.items():
            same &= ~differs(column, take(stored.index.columns.get(name), rows), len(rows))
        is_same_file = receipt.xxh3 == stored.xxh3[rows]
        for number, (place, row) in enumerate(zip(receipt.samples.tolist(), rows.tolist())):
            if stored.read(row) is None:
                what = "the stored record is damaged; run `precompile verify --full`"
                yield self._found(row, str(shard_path(stored.root, self._shard(row).file)), what)
            elif not same[number]:
                changed = "the source file has changed since it was compiled; build again"
                yield self._of_input(place, self._why_different(row) if is_same_file[number] else changed)

    def _why_failed(self, row: int, failure: Quarantined) -> str:
        is_same_file = failure.xxh3 in ("", f"{int(self._stored.xxh3[row]):016x}")
        changed = "" if is_same_file else "the source file has changed since it was compiled, and "
        return f"{changed}cannot be compiled again: {failure.message}"

    def _why_different(self, row: int) -> str:
        then, now = self._shard(row).versions, library_versions(str(self._stored.manifest.source.get("media")))
        other = [f"{name} {then[name]}, now {now[name]}" for name in now if then.get(name, now[name]) != now[name]]
        why = f" (made with {', '.join(other)})" if other else "; the libraries are those it was made with"
        return f"the source file is the same, but it decodes differently now{why}"

    def _shard(self, row: int) -> Shard:
        return self._stored.manifest.shards[int(self._stored.index.record[row, 0])]

    def _of_input(self, place: int, what: str) -> tuple[int, Finding]:
        return self._found(int(self.rows[place]), self._plan.paths[int(self._inputs[place])], what)

    def _found(self, row: int, file: str, what: str) -> tuple[int, Finding]:
        return row, Finding(what, file, sample=self._stored.index.keys[row], shard=self._shard(row).file)
