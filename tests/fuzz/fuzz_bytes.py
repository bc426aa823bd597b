"""What may happen to the bytes of a file: of any file, of an index file, of a manifest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

Rng = np.random.Generator


def some(rng: Rng, low: int, high: int) -> int:
    """Any number from `low` to `high` - 1; `low` when there is none."""
    return int(rng.integers(low, max(high, low + 1)))


def flip(rng: Rng, content: bytes) -> bytes:
    """Some bytes change; headers lie in the first 128, and are hit as often as the rest."""
    data = bytearray(content)
    for _ in range(some(rng, 1, 6) if data else 0):
        data[some(rng, 0, min(len(data), 128) if rng.random() < 0.5 else len(data))] ^= some(rng, 1, 256)
    return bytes(data)


def flip_one_bit(rng: Rng, content: bytes) -> bytes:
    data = bytearray(content)
    if data:
        data[some(rng, 0, len(data))] ^= 1 << some(rng, 0, 8)
    return bytes(data)


def cut(rng: Rng, content: bytes) -> bytes:
    return content[: some(rng, 0, len(content))]


def cut_the_front(rng: Rng, content: bytes) -> bytes:
    return content[some(rng, 1, len(content)) :]


def extend(rng: Rng, content: bytes) -> bytes:
    return content + (rng.bytes if rng.random() < 0.5 else bytes)(some(rng, 1, 5000))


def zero(rng: Rng, content: bytes) -> bytes:
    start, stop = sorted(some(rng, 0, len(content) + 1) for _ in range(2))
    return content[:start] + bytes(stop - start) + content[stop:]


def noise(rng: Rng, content: bytes) -> bytes:
    start = some(rng, 0, len(content))
    stop = min(len(content), start + some(rng, 1, 64))
    return content[:start] + rng.bytes(stop - start) + content[stop:]


def shift(rng: Rng, content: bytes) -> bytes:
    """A piece moves: the size stays."""
    start, stop = sorted(some(rng, 0, len(content) + 1) for _ in range(2))
    return content[start:stop] + content[:start] + content[stop:]


def empty(rng: Rng, content: bytes) -> bytes:
    return b""


INTEGERS = (0, 1, -1, 2, 63, 64, 65, 127, 128, 192, 255, 4096, 1 << 21, (1 << 21) + 64, 2**31 - 1, 2**31, 2**32,
            2**40, 2**62 - 1, 2**62, 2**63 - 64, 2**63 - 1, -64, -(2**31), -(2**63))  # fmt: skip


def change_elements(rng: Rng, content: bytes) -> bytes:
    """Numbers of an .npy file that mean trouble, or are those of another row."""
    end = len(content) // 8 * 8
    values = np.frombuffer(content[128:end], "<i8").copy()
    for _ in range(some(rng, 1, 4) if len(values) else 0):
        other = int(values[some(rng, 0, len(values))])
        values[some(rng, 0, len(values))] = other if rng.random() < 0.4 else INTEGERS[some(rng, 0, len(INTEGERS))]
    return content[:128] + values.tobytes() + content[end:]


def change_header(rng: Rng, content: bytes) -> bytes:
    """Another dtype, order or shape in an .npy file."""
    old, new = [
        (rb"<(\w\d)", rb">\1"), (rb"[<|]\w\d", b"<f8"), (rb"[<|]\w\d", b"|O8"), (rb"[<|]\w\d", b"|S0"), (b"i8", b"u8"),
        (b"False", b"True"), (rb"\(\d+,", b"(%d," % INTEGERS[some(rng, 0, len(INTEGERS))]), (rb"\(\d+,", b"(9" * 99),
        (rb"\((.*)\)", rb"(\1, 1)"), (rb"\((.*)\)", b"()"), (rb"'shape'", b"'sh\xffpe'"), (b"{", b"{" * 50),
        (rb"\x01\x00", b"\x02\x00"), (rb" +\n", b"\n"), (rb"\((\d+),\)", rb"(\1.0,)"), (rb"\((\d+)", rb"(0\1"),
        (rb"\(12, 3\)", b"(3, 12)"), (rb"\(12, 3\)", b"(36,)"),
    ][some(rng, 0, 18)]  # fmt: skip
    header = re.sub(old, new, content[:128], count=1)
    return header[:128].ljust(128) + content[128:]


VALUES: tuple[Any, ...] = (
    None, True, 0.5, 1e400, float("nan"), "", "x", "\ud800", "../../../etc/passwd", "label", "utf8", "bmp", "raw_hwc",
    [], [[]], {}, {"name": []}, ["x"], [None], [0], [3, 8], [3, 8, 2**39], [2] * 40, [4, 6, 8], [3, 4, 16], *INTEGERS,
)  # fmt: skip


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything below a JSON value."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += [(value, key), *_places(item)]
    return found


def change_json(rng: Rng, content: bytes) -> bytes:
    """Values of a manifest, any of them: others, missing, twice, or exchanged."""
    value = json.loads(content)
    for _ in range(some(rng, 1, 3)):
        places = _places(value)
        (container, key), (other, other_key) = (places[some(rng, 0, len(places))] for _ in range(2))
        choice = some(rng, 0, 8)
        if choice == 0:
            del container[key]
        elif choice == 1 and isinstance(container, list):
            container.append(container[key])
        elif choice == 2:
            container[key] = json.loads(json.dumps(other[other_key]))
        elif choice == 3 and type(container[key]) is int:
            container[key] += some(rng, -2, 3)
        else:
            container[key] = VALUES[some(rng, 0, len(VALUES))]
    return json.dumps(value, indent=1).encode()


def nest(rng: Rng, content: bytes) -> bytes:
    """JSON deeper than any stack."""
    return b"[" * 100_000 + content


def many_digits(rng: Rng, content: bytes) -> bytes:
    return re.sub(rb": \d+", b": " + b"9" * 5000, content, count=some(rng, 1, 3))


BYTES: tuple[Callable[[Rng, bytes], bytes], ...] = (
    flip, flip, flip_one_bit, flip_one_bit, cut, cut_the_front, extend, zero, noise, shift, empty,
)  # fmt: skip
JSON = (change_json,) * 14 + (nest, many_digits)
NPY = (change_elements, change_elements, change_header)
