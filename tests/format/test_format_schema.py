from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from format_strategies import schemas
from hypothesis import given
from hypothesis import strategies as st

from precompile.errors import FormatError
from precompile.format.schema import ARRAY_DTYPES, FieldSpec, Schema, align

IMAGE = FieldSpec("image", "uint8", (3, None, None))
LABEL = FieldSpec("label", "int64", ())


def test_the_dtype_table_is_numpys_little_endian_sizes() -> None:
    assert list(ARRAY_DTYPES) == ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]
    assert {name: np.dtype(name).itemsize for name in ARRAY_DTYPES} == dict(ARRAY_DTYPES)


@pytest.mark.parametrize("dtype", ["object", "bool", "complex64", "float", "uint32", ">f4", "", "O"])
def test_no_other_dtype_is_accepted(dtype: str) -> None:
    with pytest.raises(FormatError, match=r"field a: dtype must be one of uint8, .*float64, utf8, got "):
        FieldSpec("a", dtype, (2,))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "Image"}, r"a field name must match .*, got name='Image'"),
        ({"name": "a/b"}, r"got name='a/b'"),
        ({"name": ""}, r"got name=''"),
        ({"name": "a\n"}, r"got name="),
        ({"dtype": "utf8"}, r"field a: text must have shape \(\), got shape=\(3, 4, 5\)"),
        ({"shape": (3, 0, 5)}, r"field a: sizes must be positive integers or None, got shape=\(3, 0, 5\)"),
        ({"shape": (-1,)}, r"sizes must be positive integers or None"),
        ({"shape": (True,)}, r"sizes must be positive integers or None"),
        ({"shape": (1.0,)}, r"sizes must be positive integers or None"),
        ({"shape": (2**40,)}, r"sizes must be positive integers or None"),
        ({"encoding": "png"}, r"field a: encoding must be one of raw, raw_hwc, bmp, got 'png'"),
        ({"encoding": "bmp", "shape": (2, 4, 4)}, r"a bmp image must have 1, 3 or 4 channels, got shape=\(2, 4, 4\)"),
        ({"shape": (1,) * 17}, "field a: a shape has at most 16 axes, got 17"),
        ({"unit": "\ud800"}, r"expected text that UTF-8 can hold, got '.ud800'"),
        ({"encoding": "bmp", "dtype": "float32"}, r"encoding bmp needs uint8 \(channels, height, width\), got float32"),
        ({"encoding": "raw_hwc", "shape": (4, 5)}, r"encoding raw_hwc needs uint8 .* got uint8 \(4, 5\)"),
    ],
)
def test_a_value_outside_its_table_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        FieldSpec(**{"name": "a", "dtype": "uint8", "shape": (3, 4, 5), **values})


@given(schemas())
def test_json_round_trip(schema: Schema) -> None:
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": 1}, "a schema must be a list of fields, got dict"),
        ([3], "a field needs name, dtype, shape, encoding and unit, got 3"),
        ([{"name": "a"}], "a field needs name, dtype, shape, encoding and unit"),
        ([{**IMAGE.to_json(), "shape": 3}], "a field needs name"),
        ([IMAGE.to_json(), IMAGE.to_json()], r"field names must be unique, got \['image', 'image'\]"),
        ([LABEL.to_json()], r"a schema needs at least one array field, got \['label'\]"),
        ([], "a schema needs at least one array field"),
    ],
)
def test_damaged_json_is_a_format_error(value: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Schema.from_json(value)


def test_columns_and_arrays_keep_their_order() -> None:
    mask = FieldSpec("mask", "uint8", (1, 2, 2))
    schema = Schema((IMAGE, LABEL, mask))
    assert schema.arrays == (IMAGE, mask)
    assert schema.columns == (LABEL,)
    assert (schema.is_fixed, mask.is_fixed, IMAGE.varying_axes) == (False, True, (1, 2))
    assert schema["mask"] is mask
    assert "mask" in schema
    with pytest.raises(KeyError, match="choose from image, label, mask"):
        schema["depth"]


@pytest.mark.parametrize("shape", [(3, 5), (1, 5, 5), (3, 0, 5), (3, 5, -5)])
def test_a_shape_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(FormatError, match="field image: "):
        IMAGE.complete(shape)


@given(st.integers(0, 2**50))
def test_align_is_the_next_multiple_of_64(size: int) -> None:
    assert align(size) % 64 == 0
    assert 0 <= align(size) - size < 64
