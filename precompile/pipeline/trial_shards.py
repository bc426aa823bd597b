"""Writing shards of zeros: how large they get, and how long it takes."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precompile.pipeline.checksum import file_checksum
from precompile.pipeline.writers import open_writer

_TRIAL_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Trial:
    """What follows for each byte of records."""

    shard_bytes: float = 1.0
    seconds: float = 0.0


def try_shards(store: str, record_bytes: np.ndarray, records: int) -> Trial:
    """Write a few shards in a temporary folder.

    record_bytes: int64 (k,), sizes that occur; the trial mixes them. records: how many there are in a shard.
    """
    if not len(record_bytes):
        return Trial()
    whole_shards = -(-len(record_bytes) // records) * records
    count = max(1, min(int(_TRIAL_BYTES // record_bytes.mean()), whole_shards))
    mixed = np.random.default_rng(0).permutation(record_bytes)
    sizes: list[int] = mixed[np.arange(count) % len(mixed)].tolist()
    shards = [sizes[start : start + records] for start in range(0, count, records)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="precompile-") as folder:
        shard_bytes = sum(_write(store, Path(folder) / "trial", shard) for shard in shards)
    return Trial(shard_bytes / sum(sizes), (time.monotonic() - began) / sum(sizes))


def _write(store: str, path: Path, sizes: list[int]) -> int:
    """The bytes of one shard, which is removed."""
    zeros = np.zeros(max(sizes), np.uint8)
    writer = open_writer(store, path)
    try:
        for size in sizes:
            writer.append(zeros[:size])
        writer.commit()
    except BaseException:
        writer.abort()
        raise
    file_checksum(path)
    num_bytes = path.stat().st_size
    path.unlink()
    return num_bytes
