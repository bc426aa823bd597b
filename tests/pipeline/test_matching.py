from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precompile.format.text import TextColumn
from precompile.pipeline import matching
from precompile.pipeline.matching import match_keys

characters = st.characters(exclude_categories=("Cs",)) | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)
"""With the surrogates that stand for bytes of file names which are not UTF-8."""
texts = st.text(characters, max_size=4)
unique = st.lists(texts, max_size=12, unique_by=lambda text: text.encode("utf-8", "surrogateescape"))


def match_slowly(old: list[str], new: list[str]) -> list[int]:
    rows = {key.encode("utf-8", "surrogateescape"): row for row, key in enumerate(old)}
    return [rows.get(key.encode("utf-8", "surrogateescape"), -1) for key in new]


@pytest.mark.parametrize("mask", [2**64 - 1, 3, 0])
@given(old=unique, new=unique, data=st.data())
def test_every_key_finds_its_own_row_or_none(mask: int, old: list[str], new: list[str], data: st.DataObject) -> None:
    """mask: of the hashes; with few bits or none, many keys have one hash."""
    shared = data.draw(st.lists(st.sampled_from(old), unique=True)) if old else []
    taken = {text.encode("utf-8", "surrogateescape") for text in shared}
    new = shared + [text for text in new if text.encode("utf-8", "surrogateescape") not in taken]
    hashes = matching._hashes
    with mock.patch.object(matching, "_hashes", lambda keys: hashes(keys) & np.uint64(mask)):
        found = match_keys(TextColumn.of(old), TextColumn.of(new))
    assert found.dtype == np.int64
    assert found.tolist() == match_slowly(old, new)


@given(keys=unique, data=st.data())
def test_slices_are_matched_as_what_they_hold(keys: list[str], data: st.DataObject) -> None:
    """A slice of a column shares the bytes of the whole."""
    bounds = st.integers(0, len(keys))
    (a, b), (c, d) = (sorted(data.draw(st.tuples(bounds, bounds))) for _ in range(2))
    column = TextColumn.of(keys)
    assert match_keys(column[a:b], column[c:d]).tolist() == match_slowly(keys[a:b], keys[c:d])


def test_equal_lists_need_no_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "_hashes", None)
    column = TextColumn.of(["a", "", "b"])
    assert match_keys(column, TextColumn.of(["a", "", "b"])).tolist() == [0, 1, 2]
