"""Stacks as `faulthandler` writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str


_LIBRARIES = re.compile(r"/(site|dist)-packages/|/lib/python3[.\d]*/|^<")
_PACKAGE = str(Path(__file__).parents[2])


def own_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost one of the user's: of no library, and not of this package."""
    own = (frame for frame in frames if not _LIBRARIES.search(frame.file) and not frame.file.startswith(_PACKAGE))
    return next(own, None)


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
