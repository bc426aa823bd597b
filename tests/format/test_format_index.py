from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precompile.errors import FormatError
from precompile.format.index import Index, open_array, open_text, save_column
from precompile.format.schema import ARRAY_DTYPES, FieldSpec, Schema
from precompile.format.text import TextColumn

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
SCHEMA = Schema(
    (
        FieldSpec("spectrogram", "float16", (4, None)),
        FieldSpec("image", "uint8", (3, 2, 2)),
        FieldSpec("label", "int64", ()),
        FieldSpec("text", "utf8", ()),
    )
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The index of two samples of SCHEMA."""
    save_column(tmp_path, "record", np.array([[0, 64, 80], [1, 128, 90]]))
    save_column(tmp_path, "crc32", np.array([1, 2], np.uint32))
    save_column(tmp_path, "key", TextColumn.of(["a.wav", "b/ü.wav"]))
    save_column(tmp_path, "column.label", np.array([3, -1]))
    save_column(tmp_path, "column.text", TextColumn.of(["", "two"]))
    save_column(tmp_path, "shape.spectrogram", np.array([[4, 7], [4, 9]]))
    return tmp_path


@same_folder
@given(st.sampled_from([*ARRAY_DTYPES, "uint32", "uint64"]), st.integers(0, 5), st.integers(0, 3), st.booleans())
def test_arrays_come_back(tmp_path: Path, dtype: str, rows: int, width: int, fortran: bool) -> None:
    array = np.arange(rows * width).reshape(rows, width).astype(dtype, order="F" if fortran else "C")
    save_column(tmp_path, "a", array)
    found = open_array(tmp_path / "a.npy", dtype, (rows, None))
    assert np.array_equal(found, array)
    assert found.dtype == array.dtype
    assert np.array_equal(np.load(tmp_path / "a.npy", allow_pickle=False), array)


@same_folder
@given(st.lists(st.text(max_size=5), max_size=10), st.integers(0, 10))
def test_text_comes_back_also_of_a_slice(tmp_path: Path, strings: list[str], start: int) -> None:
    save_column(tmp_path, "t", TextColumn.of(strings)[start:])
    assert list(open_text(tmp_path, "t", len(strings[start:]))) == strings[start:]


def test_an_array_is_read_only(saved: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        open_array(saved / "record.npy", "int64", (2, 3))[0, 0] = 1


def test_index_gives_every_column(saved: Path) -> None:
    index = Index(saved, SCHEMA, 2)
    assert index.record.tolist() == [[0, 64, 80], [1, 128, 90]]
    assert index.crc32.tolist() == [1, 2]
    assert list(index.keys) == ["a.wav", "b/ü.wav"]
    assert list(index.columns["text"]) == ["", "two"]
    assert index.columns["label"].tolist() == [3, -1]  # type: ignore[union-attr]
    assert index.shapes(1) == [(4, 9), (3, 2, 2)]
    varying = index.shape_column("spectrogram")
    assert varying is not None
    assert varying.tolist() == [[4, 7], [4, 9]]
    assert index.shape_column("image") is None


@pytest.mark.parametrize("shape", [[5, 7], [4, 0], [4, -7]])
def test_a_shape_that_contradicts_the_schema(saved: Path, shape: list[int]) -> None:
    save_column(saved, "shape.spectrogram", np.array([shape, [4, 9]]))
    index = Index(saved, SCHEMA, 2)
    with pytest.raises(FormatError, match="field spectrogram: "):
        index.shapes(0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros((2, 3), np.int32), r"expected int64 of shape \(2, 3\), found int32 of shape \(2, 3\)"),
        (np.zeros((2, 3), ">i8"), r"expected int64 of shape \(2, 3\), found >i8"),
        (np.zeros((3, 3), np.int64), r"expected int64 of shape \(2, 3\), found int64 of shape \(3, 3\)"),
        (np.zeros(6, np.int64), r"found int64 of shape \(6,\)"),
        (np.zeros((2, 3), np.int64, order="F"), "expected values in C order, found Fortran order"),
    ],
)
def test_an_array_of_another_kind(tmp_path: Path, content: np.ndarray, message: str) -> None:
    np.save(tmp_path / "record.npy", content)
    with pytest.raises(FormatError, match=f"record.npy: .*{message}"):
        open_array(tmp_path / "record.npy", "int64", (2, 3))


def _header(text: str, version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text.encode("latin1")


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x93NUMPY", b"PK\x03\x04 a zip file", b"\x80\x04 a pickle", b"hello world, this is no array",
        _header("{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }", b"\x02\x00"),
        _header("{'descr': '|O', 'fortran_order': False, 'shape': (2, 3), }"),
        _header("{'descr': '<i8', 'fortran_order': False, 'shape': (-2, 3), }"),
        _header("{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3"),
        _header("{'descr': '<i8', 'fortran_order': False, 'shape': (2, '''3), }"),
        _header("(" * 5000), _header("{'descr': '<i8'}"), _header("__import__('os').abort()"),
    ],
    ids=range(13),
)  # fmt: skip
def test_what_is_no_npy_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "record.npy").write_bytes(content + bytes(48) if len(content) > 30 else content)
    with pytest.raises(FormatError, match=r"record\.npy: "):
        open_array(tmp_path / "record.npy", "int64", (2, 3))


def test_a_huge_shape_costs_nothing(tmp_path: Path) -> None:
    text = "{'descr': '<i8', 'fortran_order': False, 'shape': (9223372036854775807, 9223372036854775807), }"
    (tmp_path / "record.npy").write_bytes(_header(text))
    with pytest.raises(FormatError, match=r"record.npy: expected \d+ bytes, found"):
        open_array(tmp_path / "record.npy", "int64", (None, None))


@pytest.mark.parametrize("offsets", [[0, 1, 4], [0, 1, 2], [1, 2, 3], [-1, 0, 3]])
def test_text_whose_two_files_do_not_fit(saved: Path, offsets: list[int]) -> None:
    save_column(saved, "column.text.offsets", np.array(offsets))
    with pytest.raises(FormatError, match=re.escape(f"column.text.offsets.npy: offsets from {offsets[0]} to ")):
        Index(saved, SCHEMA, 2)


@pytest.mark.parametrize("middle", [4, 2**62, -1])
def test_damaged_offsets_inside_the_text_are_an_error(saved: Path, middle: int) -> None:
    save_column(saved, "column.text.offsets", np.array([0, middle, 3]))
    column = Index(saved, SCHEMA, 2).columns["text"]
    assert isinstance(column, TextColumn)
    for read in (lambda: column[0], lambda: column[1], lambda: list(column), lambda: column.take(np.array([1])),
                 lambda: list(column[1:])):  # fmt: skip
        with pytest.raises(FormatError, match=r"column.text.offsets.npy: offsets must ascend from 0 to 3"):
            read()
