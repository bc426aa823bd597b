from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precompile.format.text import TextColumn

# As os.fsdecode makes them: any text, with lone surrogates for the bytes of a name that are not UTF-8
names = st.one_of(st.text(max_size=8), st.binary(max_size=8).map(lambda b: b.decode("utf-8", "surrogateescape")))
lists = st.lists(names, max_size=30)


@given(lists)
def test_it_is_the_list_it_was_made_of(strings: list[str]) -> None:
    column = TextColumn.of(strings)
    assert len(column) == len(strings)
    assert list(column) == strings
    assert [column[i] for i in range(len(strings))] == strings
    assert [column[-i - 1] for i in range(len(strings))] == strings[::-1]
    assert list(reversed(column)) == strings[::-1]


@given(lists, st.integers(-40, 40) | st.none(), st.integers(-40, 40) | st.none(), st.integers(-40, 40) | st.none())
def test_slices(strings: list[str], start: int | None, stop: int | None, again: int | None) -> None:
    column = TextColumn.of(strings)
    part = column[start:stop]
    assert list(part) == strings[start:stop]
    assert list(part[again:]) == strings[start:stop][again:]
    assert part.data is column.data


@given(st.lists(names, min_size=1, max_size=20), st.data())
def test_take(strings: list[str], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(strings) - 1))
    column, expected = TextColumn.of(strings)[first:], strings[first:]
    wanted = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=30))
    taken = column.take(np.array(wanted, np.int64))
    assert list(taken) == [expected[i] for i in wanted]
    assert taken.offsets[0] == 0


@given(lists)
def test_pickling(strings: list[str]) -> None:
    assert list(pickle.loads(pickle.dumps(TextColumn.of(strings)))) == strings


def test_iteration_goes_on_past_one_block() -> None:
    strings = [str(number) * (number % 3) for number in range(10_000)]
    assert list(TextColumn.of(strings)) == strings


@pytest.mark.parametrize("index", [3, -4, 100])
def test_an_index_out_of_range(index: int) -> None:
    with pytest.raises(IndexError, match="is out of range for 3 strings"):
        TextColumn.of("abc")[index]


def test_a_slice_with_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="must have step 1, got step=2"):
        TextColumn.of("abc")[::2]


def test_strings_are_utf8_at_offsets() -> None:
    column = TextColumn.of(["é", "", "a"])
    assert column.offsets.tolist() == [0, 2, 2, 3]
    assert column.data.tobytes() == "éa".encode()
