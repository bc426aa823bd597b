"""Receipts and records taken over -> the index of a new generation, in source order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from precompile.errors import BuildFailedError
from precompile.format.index import Column, save_column
from precompile.format.manifest import IndexFile, Shard, Split
from precompile.format.schema import TEXT, FieldSpec, Schema
from precompile.format.text import TextColumn
from precompile.pipeline.checksum import file_checksum
from precompile.pipeline.earlier import Earlier
from precompile.pipeline.fingerprint import fingerprint
from precompile.pipeline.journal import Receipt
from precompile.pipeline.plan import Plan
from precompile.pipeline.quarantine import QUARANTINE_NAME, Quarantined, write_quarantine
from precompile.pipeline.reuse import NONE, Reuse

_UNITS = {"duration_seconds": "s", "sample_rate": "Hz"}


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Some samples of the new generation, and where their records lie. Row r of every array is one sample."""

    samples: np.ndarray
    file: np.ndarray
    """int64: the position of the record's shard in `shards`."""
    shards: tuple[Shard, ...]
    offset: np.ndarray
    length: np.ndarray
    crc32: np.ndarray
    xxh3: np.ndarray
    shapes: Mapping[str, np.ndarray]
    columns: Mapping[str, Column]

    @classmethod
    def written(cls, receipt: Receipt) -> _Part:
        assert receipt.shard is not None
        r, file = receipt, np.zeros(len(receipt.samples), np.int64)
        return cls(r.samples, file, (receipt.shard,), r.offset, r.length, r.crc32, r.xxh3, r.shapes, r.columns)

    @classmethod
    def taken_over(cls, earlier: Earlier, samples: np.ndarray, rows: np.ndarray) -> _Part:
        file, offset, length = earlier.index.record[rows].T
        crc32, xxh3 = earlier.index.crc32[rows], earlier.xxh3[rows]
        shards, shapes, columns = earlier.manifest.shards, earlier.shapes(rows), earlier.columns(rows)
        return cls(samples, file, shards, offset, length, crc32, xxh3, shapes, columns)


class GenerationWriter:
    """Puts one plan together. Raises BuildFailedError when an input is missing.

    receipts: of all tasks. reuse: what was taken over from the generation before.
    """

    def __init__(
        self, plan: Plan, receipts: Sequence[Receipt], fields: tuple[FieldSpec, ...], reuse: Reuse | None = None
    ) -> None:
        self.plan = plan
        self._reuse = reuse or Reuse.nothing(len(plan))
        same = np.concatenate([receipt.same for receipt in receipts] or [np.empty((0, 2), np.int64)])
        parts = list(self._parts(receipts, same[same[:, 1] >= 0]))
        unsorted = np.concatenate([part.samples for part in parts] or [np.empty(0, np.int64)])
        self._sort = np.argsort(unsorted, kind="stable")
        self.samples = unsorted[self._sort]
        self.compiled = sum(len(receipt.samples) - receipt.copied for receipt in receipts)
        self.quarantined = self._quarantined(receipts, same[same[:, 1] < 0])
        self._check_counts()
        self.splits = self._splits()
        self.shards, record = self._places(parts)
        self.columns = self._columns(parts)
        self.arrays = self._arrays(parts, record, fields)
        self.schema = self._schema(fields)

    @property
    def count(self) -> int:
        return len(self.samples)

    @property
    def source_columns(self) -> list[str]:
        """Columns that are the source's, not the engine's."""
        return [name for name in self.plan.columns if name not in self._engine_columns]

    def _parts(self, receipts: Sequence[Receipt], same: np.ndarray) -> Iterator[_Part]:
        earlier = self._reuse.earlier
        if earlier is not None:
            untouched = np.flatnonzero(self._reuse.rows != NONE)
            samples = np.concatenate([untouched, same[:, 0]])
            rows = np.concatenate([self._reuse.rows[untouched], same[:, 1]])
            if len(samples):
                yield _Part.taken_over(earlier, samples, rows)
        yield from (_Part.written(receipt) for receipt in receipts if receipt.shard is not None)

    def _join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        joined: np.ndarray = np.concatenate(parts)[self._sort]
        return joined

    def _quarantined(self, receipts: Sequence[Receipt], same: np.ndarray) -> tuple[Quarantined, ...]:
        """In source order, each with its split, its file's times, and the attempts of earlier builds."""
        before = () if self._reuse.earlier is None else self._reuse.earlier.quarantined
        as_before = {**self._reuse.failed, **{sample: -1 - row for sample, row in same.tolist()}}
        attempts = {row.identity: row.attempts for row in before}
        rows = {sample: self._located(sample, before[place]) for sample, place in as_before.items()}
        for sample, row in (item for receipt in receipts for item in receipt.quarantined):
            located = self._located(sample, row)
            rows[sample] = replace(located, attempts=row.attempts + attempts.get(located.identity, 0))
        self._failed = np.array(sorted(rows), np.int64)
        return tuple(rows[sample] for sample in self._failed.tolist())

    def _located(self, sample: int, row: Quarantined) -> Quarantined:
        ends = [split.start + split.count for split in self.plan.splits]
        split = self.plan.splits[int(np.searchsorted(ends, sample, side="right"))].name
        size, mtime_ns, ctime_ns, inode = self.plan.stat[sample].tolist()
        key, path = self.plan.keys[sample], self.plan.paths[sample]
        return replace(
            row, key=key, path=path, split=split, size=size, mtime_ns=mtime_ns, ctime_ns=ctime_ns, inode=inode
        )

    def _check_counts(self) -> None:
        everything = np.sort(np.concatenate([self.samples, self._failed]))
        if not np.array_equal(everything, np.arange(len(self.plan))):
            raise BuildFailedError(
                f"planned {len(self.plan)} inputs, but {len(self.samples)} compiled or reused and "
                f"{len(self._failed)} quarantined do not add up; nothing was committed. Run with --rebuild"
            )

    def _splits(self) -> tuple[Split, ...]:
        starts = np.searchsorted(self.samples, [s.start for s in self.plan.splits] + [len(self.plan)]).tolist()
        return tuple(Split(s.name, starts[i], starts[i + 1] - starts[i]) for i, s in enumerate(self.plan.splits))

    def _places(self, parts: Sequence[_Part]) -> tuple[tuple[Shard, ...], np.ndarray]:
        """The shards that are used, old ones first, and int64 (n, 3): shard, offset and length of each record."""
        used = [(part, np.unique(part.file)) for part in parts]
        shards = {part.shards[i].file: part.shards[i] for part, files in used for i in files.tolist()}
        number = {file: position for position, file in enumerate(shards)}
        places = []
        for part, files in used:
            renumbered = np.zeros(len(part.shards), np.int64)
            renumbered[files] = [number[part.shards[i].file] for i in files.tolist()]
            places.append(np.stack([renumbered[part.file], part.offset, part.length], axis=1))
        return tuple(shards.values()), self._join(places)

    def _columns(self, parts: Sequence[_Part]) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for name, column in self.plan.columns.items():
            columns[name] = column.take(self.samples) if isinstance(column, TextColumn) else column[self.samples]
        self._engine_columns = tuple(parts[0].columns) if parts else ()
        for name in self._engine_columns:
            found = [part.columns[name] for part in parts]
            if isinstance(found[0], TextColumn):
                columns[name] = TextColumn.of(text for part in found for text in part).take(self._sort)
            else:
                columns[name] = self._join([part for part in found if isinstance(part, np.ndarray)])
        return columns

    def _arrays(
        self, parts: Sequence[_Part], record: np.ndarray, fields: tuple[FieldSpec, ...]
    ) -> dict[str, np.ndarray]:
        arrays = {
            "record": record,
            "crc32": self._join([part.crc32 for part in parts]),
            "source.stat": self.plan.stat[self.samples],
            "source.xxh3": self._join([part.xxh3 for part in parts]),
        }
        return arrays | {
            f"shape.{spec.name}": self._join([part.shapes[spec.name] for part in parts]) for spec in fields
        }

    def _schema(self, fields: tuple[FieldSpec, ...]) -> Schema:
        """The declared fields, with every size that all samples share filled in."""
        specs = []
        for spec in fields:
            shapes = self.arrays[f"shape.{spec.name}"]
            same = (shapes == shapes[0]).all(axis=0)
            shape = tuple(int(size) if fixed else None for size, fixed in zip(shapes[0], same))
            specs.append(replace(spec, shape=shape))
            if same.all():
                del self.arrays[f"shape.{spec.name}"]
        for name, column in self.columns.items():
            dtype = TEXT if isinstance(column, TextColumn) else column.dtype.name
            specs.append(FieldSpec(name, dtype, (), unit=_UNITS.get(name, "")))
        return Schema(tuple(specs))

    def fingerprint(self, classes: tuple[str, ...] | None) -> str:
        keys = self.plan.keys.take(self.samples)
        return fingerprint(self.schema, classes, self.splits, keys=keys, arrays=self.arrays, columns=self.columns)

    def write_index(self, directory: Path) -> dict[str, IndexFile]:
        for name, array in self.arrays.items():
            save_column(directory, name, array)
        for name, column in self.columns.items():
            save_column(directory, f"column.{name}", column)
        save_column(directory, "key", self.plan.keys.take(self.samples))
        write_quarantine(directory / QUARANTINE_NAME, self.quarantined)
        return {path.name: IndexFile(path.stat().st_size, file_checksum(path)) for path in sorted(directory.iterdir())}
