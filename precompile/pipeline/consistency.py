"""Does an index contradict itself, its manifest, or the sizes of the shards? Nothing but the index is read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from precompile.errors import FormatError
from precompile.format import record
from precompile.format.index import Index
from precompile.format.manifest import Manifest
from precompile.format.schema import ALIGNMENT
from precompile.format.text import TextColumn
from precompile.pipeline.finding import Finding

_NAMED = 20
_BLOCK = 65_536


def check_texts(index: Index) -> Iterator[Finding]:
    """Keys and other text: without good offsets no sample can be named."""
    texts = {"key": index.keys, **{f"column.{name}": column for name, column in index.columns.items()}}
    for name, column in texts.items():
        if isinstance(column, TextColumn) and (column.offsets[1:] < column.offsets[:-1]).any():
            file = str(index.directory / f"{name}.offsets.npy")
            yield Finding("the offsets of the text must ascend; restore the file or build again", file)


def lies_in_shard(manifest: Manifest, places: np.ndarray) -> np.ndarray:
    """bool (n,): whether each record lies in a shard, at a multiple of 64. places: int64 (n, 3), as Index.record."""
    sizes = np.array([shard.bytes for shard in manifest.shards] or [0], np.int64)
    shard, offset, length = places.T
    is_shard = (shard >= 0) & (shard < len(manifest.shards))
    room = sizes[np.where(is_shard, shard, 0)]
    inside: np.ndarray = is_shard & (offset >= 0) & (offset % ALIGNMENT == 0) & (length > 0) & (offset <= room)
    inside &= length <= room - np.where(inside, offset, 0)
    return inside


def check_rows(manifest: Manifest, index: Index) -> Iterator[Finding]:
    """Every record within its shard, as long as its shape needs; every label a class. The texts must be good."""
    for check in (_outside, _misshapen, _without_class):
        faults = _in_blocks(check, manifest, index)
        for fault in itertools.islice(faults, _NAMED):
            shard = int(index.record[fault.row, 0])
            name = manifest.shards[shard].file if 0 <= shard < len(manifest.shards) else ""
            yield Finding(fault.what, str(index.directory / fault.file), sample=index.keys[fault.row], shard=name)
        if more := sum(1 for _ in faults):
            yield Finding(f"{more} more samples are wrong in the same way", str(index.directory))


@dataclass(frozen=True, slots=True)
class _Fault:
    row: int
    file: str
    what: str


_Check = Callable[[Manifest, Index, slice], Iterator[_Fault]]


def _in_blocks(check: _Check, manifest: Manifest, index: Index) -> Iterator[_Fault]:
    for start in range(0, index.count, _BLOCK):
        yield from check(manifest, index, slice(start, start + _BLOCK))


def _outside(manifest: Manifest, index: Index, block: slice) -> Iterator[_Fault]:
    places = index.record[block]
    for row in np.flatnonzero(~lies_in_shard(manifest, places)).tolist():
        shard, offset, length = places[row].tolist()
        what = f"a record of {length} bytes at {offset} of shard {shard} must lie in a shard, at a multiple of 64"
        yield _Fault(block.start + row, "record.npy", what)


def _misshapen(manifest: Manifest, index: Index, block: slice) -> Iterator[_Fault]:
    """Each shape is looked at once, since most samples have one of a few."""
    shapes = [column[block] for spec in manifest.schema.arrays
              if (column := index.shape_column(spec.name)) is not None]  # fmt: skip
    facts = np.concatenate([index.record[block, 2:], *shapes], axis=1)
    _, examples, which = np.unique(facts, axis=0, return_index=True, return_inverse=True)
    for number, example in enumerate(examples.tolist()):
        fault = _layout_fault(manifest, index, block.start + example)
        if fault is not None:
            for row in np.flatnonzero(which.reshape(-1) == number).tolist():
                yield replace(fault, row=block.start + row)


def _layout_fault(manifest: Manifest, index: Index, row: int) -> _Fault | None:
    shapes = []
    for spec in manifest.schema.arrays:
        column = index.shape_column(spec.name)
        sizes = spec.shape if column is None else tuple(column[row].tolist())
        try:
            shapes.append(spec.complete(sizes))  # type: ignore[arg-type]  # without a column, all sizes are known
            record.field_bytes(spec, shapes[-1])
        except FormatError as error:
            return _Fault(row, f"shape.{spec.name}.npy", str(error))
    _, needed = record.layout(manifest.schema, shapes)
    if needed == index.record[row, 2]:
        return None
    shown = ", ".join(f"{spec.name} {shape}" for spec, shape in zip(manifest.schema.arrays, shapes))
    return _Fault(row, "record.npy", f"{shown} needs a record of {needed} bytes, not of {index.record[row, 2]}")


def _without_class(manifest: Manifest, index: Index, block: slice) -> Iterator[_Fault]:
    label = index.columns.get("label")
    if manifest.classes is None or not isinstance(label, np.ndarray):
        return
    for row in np.flatnonzero(~((label[block] >= -1) & (label[block] < len(manifest.classes)))).tolist():
        what = f"a label must be from -1 (none) to {len(manifest.classes) - 1}, got {label[block.start + row]}"
        yield _Fault(block.start + row, "column.label.npy", what)
