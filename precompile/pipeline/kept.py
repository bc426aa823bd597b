"""Finished shards of a build that was interrupted before its source changed: what still fits is not compiled again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from precompile.errors import FormatError
from precompile.format.generation import shard_path
from precompile.format.index import open_array, open_text
from precompile.format.text import TextColumn
from precompile.pipeline.input_stat import STAT_FIELDS
from precompile.pipeline.journal import Receipt, load_receipts, read_receipt
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.matching import match_keys
from precompile.pipeline.plan import Plan

_KEY, _STAT = "input key", "input stat"
"""Columns of a kept receipt, beside those of the engine: no engine's column has a space in its name."""


def keep_receipts(dirs: BuildDirs, content: str) -> None:
    """Before another plan takes the place of the one in `build/`: note which files its finished shards were made of.

    content: the digest of what decides the stored bytes, other than the files; that of the plan must be the same.
    """
    try:
        stat = open_array(dirs.plan / "stat.npy", "int64", (None, len(STAT_FIELDS)))
        keys = open_text(dirs.plan, "key", len(stat))
    except FormatError:
        return
    dirs.kept.mkdir(exist_ok=True)
    for receipt in load_receipts(dirs.receipts):
        if receipt.shard is None or int(receipt.samples.max(initial=-1)) >= len(stat):
            continue
        columns = {**receipt.columns, _KEY: keys.take(receipt.samples), _STAT: stat[receipt.samples]}
        kept = replace(receipt, columns=columns, quarantined=(), same=np.empty((0, 2), np.int64), copied=0)
        kept.write(dirs.kept / f"{content}-{receipt.shard.xxh3}.npz", durable=True)


def find_kept(dirs: BuildDirs, plan: Plan, content: str, wanted: np.ndarray) -> tuple[Receipt, ...]:
    """Receipts by the numbers of `plan`, of records whose input is unchanged and `wanted`, bool (len(plan),)."""
    paths = sorted(dirs.kept.glob(f"{content}-*.npz"))
    receipts = [receipt for path in paths if (receipt := read_receipt(path)) is not None and _has_shard(dirs, receipt)]
    if not receipts:
        return ()
    numbers = match_keys(plan.keys, TextColumn.of(key for receipt in receipts for key in receipt.columns[_KEY]))
    ends = np.cumsum([len(receipt.samples) for receipt in receipts])[:-1]
    free, found = wanted.copy(), []
    for receipt, inputs in zip(receipts, np.split(numbers, ends)):
        stat = receipt.columns[_STAT]
        fits = (inputs >= 0) & free[inputs] & (plan.stat[inputs] == stat).all(axis=1)
        fits &= np.isin(np.arange(len(inputs)), np.unique(inputs, return_index=True)[1])
        free[inputs[fits]] = False
        if fits.any():
            found.append(_part(receipt, np.flatnonzero(fits), inputs[fits]))
    return tuple(found)


def _has_shard(dirs: BuildDirs, receipt: Receipt) -> bool:
    if receipt.shard is None or not {_KEY, _STAT} <= set(receipt.columns):
        return False
    path = shard_path(dirs.root, receipt.shard.file)
    return path.is_file() and path.stat().st_size == receipt.shard.bytes


def _part(receipt: Receipt, rows: np.ndarray, samples: np.ndarray) -> Receipt:
    """Some records of a receipt, under new numbers of their inputs."""
    columns = {name: column for name, column in receipt.columns.items() if name not in (_KEY, _STAT)}
    return replace(
        receipt,
        samples=samples,
        offset=receipt.offset[rows],
        length=receipt.length[rows],
        crc32=receipt.crc32[rows],
        xxh3=receipt.xxh3[rows],
        shapes={name: shape[rows] for name, shape in receipt.shapes.items()},
        columns={n: c.take(rows) if isinstance(c, TextColumn) else c[rows] for n, c in columns.items()},
    )
