"""Receipts of finished shards on disk: what resume and commit read."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from precompile.errors import FormatError
from precompile.format.index import Column
from precompile.format.manifest import Shard
from precompile.format.text import TextColumn
from precompile.pipeline.quarantine import Quarantined
from precompile.pipeline.storage import write_atomically

_ARRAYS = ("samples", "offset", "length", "crc32", "xxh3")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one task. Row r of every array is the r-th sample of the shard."""

    task: int
    shard: Shard | None
    """None when every input of the task is in quarantine."""
    samples: np.ndarray
    """int64 (records,): the input's number in the plan."""
    offset: np.ndarray
    """int64 (records,), bytes"""
    length: np.ndarray
    """int64 (records,), bytes"""
    crc32: np.ndarray
    """uint32 (records,)"""
    xxh3: np.ndarray
    """uint64 (records,): XXH3-64 of the input's bytes"""
    shapes: Mapping[str, np.ndarray]
    """int64 (records, axes) per array field"""
    columns: Mapping[str, Column]
    """what the engine found, such as duration_seconds"""
    quarantined: tuple[tuple[int, Quarantined], ...]
    """inputs left out, with their number in the plan"""
    same: np.ndarray
    """int64 (inputs, 2): inputs whose content the generation before has, and the row there; see `Known.row`"""
    copied: int
    """records that were copied from an old shard, not compiled"""
    seconds: float

    @property
    def inputs(self) -> int:
        return len(self.samples) + len(self.quarantined) + len(self.same)

    def save(self, directory: Path) -> None:
        # Not synced, which would cost more than the shard's own sync: one that a power cut damages is not believed.
        self.write(receipt_path(directory, self.task), durable=False)

    def write(self, path: Path, *, durable: bool) -> None:
        arrays = {name: getattr(self, name) for name in (*_ARRAYS, "same")}
        arrays |= {f"shape.{name}": shape for name, shape in self.shapes.items()}
        for name, column in self.columns.items():
            if isinstance(column, TextColumn):
                arrays |= {f"text.{name}": column.offsets, f"data.{name}": column.data}
            else:
                arrays[f"column.{name}"] = column
        facts = {
            "task": self.task,
            "shard": None if self.shard is None else asdict(self.shard),
            "quarantined": [[sample, asdict(row)] for sample, row in self.quarantined],
            "copied": self.copied,
            "seconds": self.seconds,
        }
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        out = io.BytesIO()
        np.savez(out, allow_pickle=False, **arrays)
        write_atomically(path, out.getvalue(), durable=durable)


def receipt_path(directory: Path, task: int) -> Path:
    return directory / f"{task:06d}.npz"


def load_receipt(directory: Path, task: int) -> Receipt | None:
    """The receipt of a task, or None when the task is not finished or its receipt is damaged."""
    return read_receipt(receipt_path(directory, task))


def read_receipt(path: Path) -> Receipt | None:
    """The receipt in a file, or None when there is none or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            named = {name: arrays[name] for name in arrays.files}
        return _as_receipt(named)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, FormatError,
            NotImplementedError):  # fmt: skip
        return None


def _as_receipt(named: Mapping[str, np.ndarray]) -> Receipt:
    facts = json.loads(named["facts"].tobytes())
    columns: dict[str, Column] = {}
    for name, array in named.items():
        if name.startswith("column."):
            columns[name[7:]] = array
        elif name.startswith("text."):
            columns[name[5:]] = TextColumn(array, named[f"data.{name[5:]}"])
    return Receipt(
        task=facts["task"],
        shard=None if facts["shard"] is None else Shard(**facts["shard"]),
        **{name: named[name] for name in (*_ARRAYS, "same")},
        shapes={name[6:]: array for name, array in named.items() if name.startswith("shape.")},
        columns=columns,
        quarantined=tuple((sample, Quarantined(**row)) for sample, row in facts["quarantined"]),
        copied=facts["copied"],
        seconds=facts["seconds"],
    )


def load_receipts(directory: Path) -> list[Receipt]:
    """All receipts in a folder that can be read; none when there is no folder."""
    paths = sorted(directory.glob("*.npz"))
    return [receipt for path in paths if (receipt := read_receipt(path)) is not None]
