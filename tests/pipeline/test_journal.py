from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from precompile.format.manifest import Shard
from precompile.format.text import TextColumn
from precompile.pipeline.journal import Receipt, load_receipt
from precompile.pipeline.quarantine import Quarantined

ROW = Quarantined("a/\udcff.jpg", "/raw/a/\udcff.jpg", "", "decode", "ContentError", "broken", 12, "0" * 16, 2)


def receipt(task: int, records: int) -> Receipt:
    shard = Shard("0" * 32 + ".flat", 64 * (records + 1), records, "0" * 32, {"numpy": "2"}) if records else None
    return Receipt(
        task=task,
        shard=shard,
        samples=np.arange(records)[::-1].copy(),
        offset=np.arange(records) * 64 + 64,
        length=np.full(records, 48),
        crc32=np.arange(records, dtype=np.uint32) + 2**31,
        xxh3=np.arange(records, dtype=np.uint64) + 2**63,
        shapes={"spectrogram": np.arange(records * 2).reshape(records, 2)},
        columns={"duration_seconds": np.arange(records) / 3, "text": TextColumn.of("é" * n for n in range(records))},
        quarantined=((records, ROW),),
        same=np.array([[records + 1, 3], [records + 2, -1]]),
        copied=records // 2,
        seconds=1.5,
    )


@pytest.mark.parametrize("records", [0, 1, 5])
def test_a_receipt_survives_the_disk(tmp_path: Path, records: int) -> None:
    saved = receipt(7, records)
    saved.save(tmp_path)
    loaded = load_receipt(tmp_path, 7)
    assert loaded is not None
    assert (loaded.task, loaded.shard, loaded.quarantined, loaded.seconds) == (7, saved.shard, ((records, ROW),), 1.5)
    assert (loaded.copied, loaded.inputs) == (records // 2, records + 3)
    for name in ("samples", "offset", "length", "crc32", "xxh3", "same"):
        array = getattr(loaded, name)
        assert array.dtype == getattr(saved, name).dtype
        np.testing.assert_array_equal(array, getattr(saved, name))
    np.testing.assert_array_equal(loaded.shapes["spectrogram"], saved.shapes["spectrogram"])
    np.testing.assert_array_equal(loaded.columns["duration_seconds"], saved.columns["duration_seconds"])
    assert list(loaded.columns["text"]) == list(saved.columns["text"])


def test_an_unfinished_task_has_no_receipt(tmp_path: Path) -> None:
    receipt(7, 1).save(tmp_path)
    assert load_receipt(tmp_path, 8) is None


def test_saving_leaves_one_file(tmp_path: Path) -> None:
    for _ in range(2):
        receipt(3, 2).save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_a_damaged_receipt_is_not_believed(tmp_path: Path, damage: str) -> None:
    receipt(0, 200).save(tmp_path)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    middle = data.index(b"NUMPY") + 1000
    path.write_bytes(
        {
            "cut": data[: len(data) // 2],
            "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
            "empty": b"",
            "text": b"not a receipt",
        }[damage]
    )
    assert load_receipt(tmp_path, 0) is None
