"""Stacks as `faulthandler` writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str


def frames_of_main(stacks: str) -> tuple[Frame, ...]:
    """Of the main thread, the innermost frame first: it is the one that is written last."""
    blocks = re.split(r"^(?=(?:Current thread|Thread) 0x)", stacks, flags=re.MULTILINE)
    threads = [frames for block in blocks if (frames := frames_of(block))]
    return threads[-1] if threads else ()


def frames_of(text: str) -> tuple[Frame, ...]:
    return tuple(
        Frame(found["file"], int(found["line"]) if found["line"].isdigit() else 0, found["function"])
        for found in _FRAME.finditer(text)
    )
