"""A dry run: compile a small, fixed sample of the inputs and say what a build would take."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from precompile import machine
from precompile.pipeline.compile_input import Job
from precompile.pipeline.executors.limits import Limits
from precompile.pipeline.executors.local import LocalExecutor
from precompile.pipeline.extrapolation import add, extrapolate, spread
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.options import BuildOptions, Forecast, Range
from precompile.pipeline.plan import Plan, cut_tasks
from precompile.pipeline.reuse import NONE, Known
from precompile.pipeline.scratch import scratch
from precompile.pipeline.storage import read_file
from precompile.pipeline.trial_shards import try_shards
from precompile.pipeline.work import Work

_BUSIER, _IDLER = 1.5, 0.7
"""Than during the sample, the machine may be in the build."""
_PADDING, _SHARD_BYTES = 0.05, 32_768
"""By how much more shards may be padded than those that were tried: a share, and bytes of each."""
_PLAN_BYTES, _RECEIPT_BYTES = 96, 128
"""Of one input, beside its key and its path."""


def make_forecast(work: Work, job: Job, out: Path, options: BuildOptions, *, deadline: float | None = None) -> Forecast:
    """Compile a sample of the work in a temporary folder; nothing is written to `out`. Raises what a build would."""
    inputs, known = work.to_compile(), Known.of(work.reuse)
    is_likely = work.reuse.likely[inputs]
    groups = [group for group in (inputs[~is_likely], inputs[is_likely]) if len(group)]
    limits = Limits(options.timeout_seconds, deadline=deadline)
    samples = [_take_sample(work, known, group, job, limits) for group in groups]
    copied = _copied_bytes(work)
    record_bytes = np.concatenate([np.empty(0, np.int64), *(sample.record_bytes for sample in samples)])
    to_cut = copied + sum(sample.all_bytes for sample in samples)
    shards = len(cut_tasks(len(work.order), int(to_cut), job.recipe.shard_size)) - 1 if to_cut else 0
    trial = try_shards(job.recipe.store, record_bytes[record_bytes > 0], -(-len(work.order) // max(1, shards)))
    stored, seconds = add([sample.new_bytes for sample in samples]), add([sample.seconds for sample in samples])
    start_seconds = max([sample.start_seconds for sample in samples], default=0.0)
    workers = min(options.workers or machine.usable_cpus(), max(1, len(work.order)))
    return Forecast(
        inputs=len(work.order),
        sampled=len(record_bytes),
        failed=int((record_bytes == 0).sum()),
        bytes=Range(
            round(stored.low + copied),
            round((stored.expected + copied) * trial.shard_bytes),
            round((stored.high + copied) * trial.shard_bytes * (1 + _PADDING) + shards * _SHARD_BYTES),
        ),
        seconds=Range(
            round(start_seconds + seconds.low / workers * _IDLER, 3),
            round(start_seconds + seconds.expected / workers + stored.expected * trial.seconds, 3),
            round(start_seconds + (seconds.high / workers + stored.high * trial.seconds) * _BUSIER, 3),
        ),
        shards=shards,
        temporary_bytes=_temporary_bytes(work),
        free_bytes=machine.free_bytes(out),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """k of a group of inputs, and what follows for the group."""

    record_bytes: np.ndarray
    """int64 (k,): of each record, even if the generation before has it; 0 for an input that cannot be compiled."""
    all_bytes: float
    """If every input of the group had to be stored."""
    new_bytes: Range
    """Without contents that the generation before has."""
    seconds: Range
    """Of one worker, with what is lost when an input kills or hangs it."""
    start_seconds: float


def _take_sample(work: Work, known: Known, group: np.ndarray, job: Job, limits: Limits) -> _Sample:
    inputs = group[spread(len(group))]
    record_bytes, seconds = _look_up(work, known, inputs)
    is_new, start_seconds = record_bytes == NONE, 0.0
    if is_new.any():
        record_bytes[is_new], took, start_seconds = _compile(work.plan, inputs[is_new], job, limits)
        seconds[is_new] += took
    sizes, all_sizes = (np.maximum(work.plan.stat[some, 0], 0) for some in (inputs, group))

    def total(values: np.ndarray, at_stake: float) -> Range:
        return extrapolate(values, sizes, len(group), float(all_sizes.sum()), at_stake=at_stake)

    mean = float(record_bytes[record_bytes > 0].mean()) if record_bytes.any() else 0.0
    return _Sample(
        record_bytes,
        all_bytes=mean * len(group),
        new_bytes=total(np.where(is_new, record_bytes, 0), mean),
        seconds=total(seconds, float(seconds.mean())),
        start_seconds=start_seconds,
    )


def _look_up(work: Work, known: Known, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the record that has the content of each input, 0 for a content that failed, NONE if it is new; seconds
    that it took."""
    record_bytes, seconds = np.full(len(inputs), NONE, np.int64), np.zeros(len(inputs))
    earlier, may_be_known = work.reuse.earlier, np.isin(work.plan.stat[inputs, 0], known.size)
    for place, number in enumerate(inputs.tolist()):
        began, path = time.monotonic(), work.plan.paths[number]
        if earlier is not None and path and may_be_known[place]:
            data = read_file(Path(path))
            row = known.find(xxhash.xxh3_64_intdigest(data), len(data))
            if row is not None:
                record_bytes[place] = earlier.index.record[row, 2] if row >= 0 else 0
        seconds[place] = time.monotonic() - began
    return record_bytes, seconds


def _compile(plan: Plan, inputs: np.ndarray, job: Job, limits: Limits) -> tuple[np.ndarray, np.ndarray, float]:
    """Bytes of each record, 0 without one; seconds that each took; seconds that a worker needs to begin."""
    record_bytes, seconds = np.zeros(len(inputs), np.int64), np.zeros(len(inputs))
    began = time.monotonic()
    with (
        scratch(plan, inputs, job) as small,
        LocalExecutor(
            small, BuildDirs(small.root).workers, workers=1, limits=limits, on_progress=lambda _: None
        ) as executor,
    ):
        executor.probe((0,))  # a worker's first sample pays for what libraries set up
        start_seconds = time.monotonic() - began
        for place in range(len(inputs)):
            began = time.monotonic()
            record_bytes[place] = sum(executor.probe((place,)).record_bytes)
            seconds[place] = time.monotonic() - began
    return record_bytes, seconds, start_seconds


def _copied_bytes(work: Work) -> int:
    """Of records that are copied out of old shards."""
    copies = work.reuse.copies[work.order]
    if work.reuse.earlier is None:
        return 0
    return int(work.reuse.earlier.index.record[copies[copies >= 0], 2].sum())


def _temporary_bytes(work: Work) -> int:
    plan = work.plan
    names = len(plan.keys.data) + len(plan.paths.data)
    return names + _PLAN_BYTES * len(plan) + _RECEIPT_BYTES * len(work.order) if len(work.order) else 0
