"""A place where the scheduled jobs and the commands of docs/operations.md can run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builds import MAIN
from schedule_site import Site


@pytest.fixture
def site(tmp_path: Path, make_photos: Callable[..., Path]) -> Site:
    """6 raw pictures, empty folders for datasets and logs, and `precompile` on the PATH."""
    site = Site(tmp_path)
    make_photos(site.raw, count=6)
    for directory in (site.out.parent, site.logs, site.bin):
        directory.mkdir()
    site.install("precompile", f'#!/bin/sh\nexec "{sys.executable}" -c "{MAIN}" "$@"\n')
    return site
