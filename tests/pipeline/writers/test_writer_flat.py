from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Records = Callable[[list[int]], list[np.ndarray]]
Write = Callable[[str, Path, list[np.ndarray]], np.ndarray]


@pytest.mark.parametrize(
    ("lengths", "pitch"), [([], 0), ([64] * 9, 64), ([1, 64, 30], 64), ([65, 128], 128), ([1, 65], 0)]
)
def test_header(lengths: list[int], pitch: int, tmp_path: Path, records: Records, write: Write) -> None:
    write("flat", tmp_path / "shard", records(lengths))
    content = (tmp_path / "shard").read_bytes()
    assert struct.unpack_from("<8sIIQQ", content) == (b"PCFLAT\r\n", 1, 64, len(lengths), pitch)
    assert not any(content[32:64])


def test_records_follow_the_header_with_zeros_between(tmp_path: Path, records: Records, write: Write) -> None:
    first, second, third = records([10, 64, 70])
    offsets = write("flat", tmp_path / "shard", [first, second, third])
    content = (tmp_path / "shard").read_bytes()
    assert offsets.tolist() == [64, 128, 192]
    assert content[64:] == first.tobytes() + bytes(54) + second.tobytes() + third.tobytes() + bytes(58)
