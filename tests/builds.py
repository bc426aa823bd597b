"""What tests of builds share: the command line in this process or another one, and what a directory holds."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from precompile.cli.main import main

MAIN = "from precompile.cli.main import main; main()"
REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line that a refused command prints."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: "), self.err
        assert self.code not in (0, 3), self
        return lines[0]


def cli(*arguments: object) -> Outcome:
    """Run `precompile …` in this process."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    code = 0
    try:
        with (
            mock.patch.object(sys, "argv", ["precompile", *map(str, arguments)]),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Outcome(code, out.getvalue(), err.getvalue())


def start_cli(*arguments: object, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start `precompile …` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(environment or {})},
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> Outcome:
    out, err = process.communicate(timeout=60)
    return Outcome(process.returncode, out, err)


def snapshot(*roots: Path) -> dict[str, str]:
    """Digest of every file, and the target of every link, below some directories."""
    found = {}
    for root in roots:
        for path in sorted([root, *root.rglob("*")]):
            if path.is_file():
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                found[str(path)] = "directory" if path.is_dir() else "missing"
    return found


def content(out: Path, generation: int = 1) -> dict[str, bytes]:
    """The bytes of all shards and of all index files of a generation, by name."""
    directory = out / "generations" / f"{generation:06d}"
    files = [*(out / "shards").iterdir(), *directory.glob("*.npy"), directory / "quarantine.jsonl"]
    return {path.name: path.read_bytes() for path in files}


def quarantine(out: Path) -> dict[str, dict[str, Any]]:
    """The quarantine of the current generation by key."""
    generation = json.loads((out / "manifest.json").read_text())["generation"]
    lines = (out / "generations" / f"{generation:06d}" / "quarantine.jsonl").read_text().splitlines()
    return {row["key"]: row for row in map(json.loads, lines)}


def events(log_file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log_file.read_text().splitlines()]


def save_image(path: Path, value: int = 0, *, side: int = 8) -> np.ndarray:
    """A small png or bmp whose pixels depend on `value`; returns them, uint8 (side, side, 3)."""
    pixels = np.random.default_rng(value).integers(0, 256, (side, side, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


@contextmanager
def unchanged(*roots: Path) -> Iterator[None]:
    """Asserts that what lay below `roots` before is still there, and is the same."""
    before = snapshot(*roots)
    yield
    after = snapshot(*roots)
    assert {path: after.get(path) for path in before} == before


def build(raw: Path, out: Path, *arguments: object) -> Outcome:
    return cli("build", raw, out, "--workers", 1, *arguments)


def assert_matches(pattern: str, text: str) -> None:
    """As pytest.raises(match=…) matches, for text."""
    assert re.search(pattern, text), f"{pattern!r} is not in {text!r}"
