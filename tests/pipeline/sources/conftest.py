"""Trees of empty files: sources never look into a file that has a suffix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Tree = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """`tree("a/x.jpg", "b/")` makes an empty file and an empty folder below a root, and returns the root."""
    root = tmp_path / "data"
    root.mkdir()

    def make(*paths: str, files: dict[str, bytes] | None = None) -> Path:
        for path in paths:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).mkdir(exist_ok=True) if path.endswith("/") else (root / path).touch()
        for path, content in (files or {}).items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
        return root

    return make
