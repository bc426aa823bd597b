"""Pictures whose decoding goes wrong: a valid file with a word behind its end says how.

Installed in workers by `site/sitecustomize.py` when the environment asks for it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOME = "PRECOMPILE_TEST_POISON"
"""Names a folder: `decoded` gets one byte for each picture that is decoded, `once` is there after the first `ONCE`."""
DELAY = "PRECOMPILE_TEST_DECODE_SECONDS"
"""How long each picture takes."""


def environment(home: Path, *, decode_seconds: float = 0.0) -> dict[str, str]:
    home.mkdir(parents=True, exist_ok=True)
    return {HOME: str(home), DELAY: str(decode_seconds)}


def poisoned(picture: Path, word: str) -> Path:
    """Put one of ACTIONS behind a picture."""
    assert word in ACTIONS
    picture.write_bytes(picture.read_bytes() + word.encode())
    return picture


def decoded(home: Path) -> int:
    """How many pictures workers began to decode."""
    path = home / "decoded"
    return path.stat().st_size if path.exists() else 0


def install() -> None:
    if HOME not in os.environ or not any("executors.worker" in argument for argument in sys.orig_argv):
        return
    import PIL.Image

    real: Callable[..., Any] = PIL.Image.open
    delay_seconds = float(os.environ[DELAY])

    def misbehave(file: Any, *arguments: Any, **options: Any) -> Any:
        _note()
        time.sleep(delay_seconds)
        ACTIONS.get(file.getvalue()[-4:].decode("latin-1"), _nothing)()
        return real(file, *arguments, **options)

    PIL.Image.open = misbehave


def _note() -> None:
    descriptor = os.open(Path(os.environ[HOME]) / "decoded", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b".")
    os.close(descriptor)


def _nothing() -> None: ...


def _crash() -> None:
    ctypes.string_at(0)


def _hang() -> None:
    while True:
        pass


def _throw(error: BaseException) -> None:
    raise error


def _kill_all() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _kill_all_once() -> None:
    once = Path(os.environ[HOME]) / "once"
    if not once.exists():
        once.touch()
        _kill_all()


ACTIONS: dict[str, Callable[[], None]] = {
    "SEGV": _crash,
    "ABRT": os.abort,
    "HANG": _hang,
    "RAIS": lambda: _throw(ValueError("no such pixels")),
    "MEMO": lambda: _throw(MemoryError()),
    "EXIT": lambda: os._exit(3),
    "KILL": _kill_all,
    "ONCE": _kill_all_once,
}
