"""`precompile demo` and what it is made of."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from precompile.cli.demo import command
from precompile.errors import ForeignDirectoryError


@pytest.mark.slow
def test_demo_builds_trains_and_compares(tmp_path):
    result = CliRunner().invoke(command, [str(tmp_path / "demo"), "--pictures", "30", "--clips", "12"])
    assert result.exit_code == 0, result.output
    assert "built 30 samples" in result.output
    assert "built 12 samples" in result.output
    assert len(re.findall(r"loss \d\.\d\d -> \d\.\d\d", result.output)) == 2
    assert (
        len(re.findall(r"2 workers: [\d,]+ samples/s; compiled, Loader with 1 thread: [\d,]+ samples/s", result.output))
        == 2
    )
    assert (tmp_path / "demo" / "pictures.pc" / "manifest.json").exists()


def test_demo_leaves_a_folder_with_something_in_it_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    result = CliRunner().invoke(command, [str(tmp_path)])
    assert isinstance(result.exception, ForeignDirectoryError)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
