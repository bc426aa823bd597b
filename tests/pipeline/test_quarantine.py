from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from precompile.pipeline.quarantine import Quarantined, printable, read_quarantine, write_quarantine

ROW = Quarantined("a/x.jpg", "/raw/a/x.jpg", "train", "decode", "ContentError", "truncated", 12, "0" * 16, 1)


@pytest.mark.parametrize("key", ["a.jpg", "ä 象.jpg", "new\nline.jpg", "\udcff\udcfe.jpg", 'quo"te.jpg', "\u2028.jpg"])
def test_rows_survive_the_disk_whatever_the_name(tmp_path: Path, key: str) -> None:
    rows = [replace(ROW, key=key), ROW]
    write_quarantine(tmp_path / "q.jsonl", rows)
    assert read_quarantine(tmp_path / "q.jsonl") == rows
    assert len((tmp_path / "q.jsonl").read_bytes().splitlines()) == 2


def test_no_file_is_no_row(tmp_path: Path) -> None:
    assert read_quarantine(tmp_path / "q.jsonl") == []


@pytest.mark.parametrize("change", [{"key": "b"}, {"size": 13}, {"xxh3": "1" * 16}])
def test_identity_changes_with_the_input(change: dict[str, object]) -> None:
    assert replace(ROW, **change).identity != ROW.identity


def test_identity_does_not_depend_on_how_it_failed() -> None:
    assert replace(ROW, message="other", attempts=2, path="/elsewhere").identity == ROW.identity


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "\x1b[31mred", "\udcff", "tab\t", "\u2028"])
def test_a_hostile_name_stays_on_one_line(text: str) -> None:
    assert printable(text).isprintable()
    assert len(str(replace(ROW, key=text)).splitlines()) == 1


def test_ordinary_names_are_printed_as_they_are() -> None:
    assert printable("train/Ä 象/1.jpg") == "train/Ä 象/1.jpg"
