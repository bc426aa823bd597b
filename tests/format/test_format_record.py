from __future__ import annotations

import numpy as np
import pytest
from format_strategies import array_fields, filled, samples
from hypothesis import given
from hypothesis import strategies as st

from precompile.errors import FormatError
from precompile.format import record
from precompile.format.schema import FieldSpec, Schema

IMAGE = FieldSpec("image", "uint8", (3, None, None))


@given(samples())
def test_decode_gives_back_what_was_encoded(sample: tuple[Schema, dict[str, np.ndarray]]) -> None:
    schema, arrays = sample
    stored = record.encode(schema, arrays)
    assert (stored.dtype, stored.ndim) == (np.uint8, 1)
    stored.flags.writeable = False
    found = record.decode(schema, stored, [arrays[spec.name].shape for spec in schema.arrays])
    assert list(found) == [spec.name for spec in schema.arrays]
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


@given(samples())
def test_fields_follow_each_other_at_multiples_of_64(sample: tuple[Schema, dict[str, np.ndarray]]) -> None:
    schema, arrays = sample
    stored = record.encode(schema, arrays)
    end = 0
    for spec in schema.arrays:
        start = -(-end // 64) * 64
        assert not stored[end:start].any()
        part = record.encode_field(spec, arrays[spec.name])
        end = start + len(part)
        assert np.array_equal(stored[start:end], part)
    assert len(stored) == end


@given(array_fields(), st.lists(st.integers(1, 3), max_size=2), st.integers(0, 2**32))
def test_a_field_decodes_with_batch_axes(field: tuple[FieldSpec, tuple[int, ...]], batch: list[int], seed: int) -> None:
    spec, shape = field
    count = int(np.prod(batch, dtype=int))
    arrays = filled(spec.dtype, (count, *shape), seed)
    rows = np.stack([record.encode_field(spec, array) for array in arrays])
    found = record.decode_field(spec, rows.reshape(*batch, -1), shape)
    assert found.shape == (*batch, *shape)
    assert found.tobytes() == arrays.tobytes()


@given(array_fields(encodings=("raw", "raw_hwc")), st.integers(0, 2**32))
def test_raw_fields_are_views(field: tuple[FieldSpec, tuple[int, ...]], seed: int) -> None:
    spec, shape = field
    stored = record.encode_field(spec, filled(spec.dtype, shape, seed)).copy()
    assert np.shares_memory(record.decode_field(spec, stored, shape), stored)


def test_hwc_puts_the_channels_of_a_pixel_side_by_side() -> None:
    image = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    stored = record.encode_field(FieldSpec("image", "uint8", (3, 2, 2), "raw_hwc"), image)
    assert stored.tolist() == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]


@pytest.mark.parametrize("dtype", ["int32", "float32", "uint16"])
def test_big_endian_and_strided_arrays_are_stored_little_endian(dtype: str) -> None:
    array = np.arange(24, dtype=dtype).reshape(4, 6).T[::-1]
    spec = FieldSpec("a", dtype, (6, 4))
    stored = record.encode_field(spec, array.astype(np.dtype(dtype).newbyteorder(">")))
    assert stored.tobytes() == np.ascontiguousarray(array).astype(np.dtype(dtype).newbyteorder("<")).tobytes()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 2, 2), np.float32), "field image: expected dtype uint8, got float32"),
        (np.zeros((3, 2, 2), bool), "field image: expected dtype uint8, got bool"),
        (np.zeros((1, 2, 2), np.uint8), r"field image: shape \(1, 2, 2\) does not fit the declared \(3, None, None\)"),
        (np.zeros((3, 2), np.uint8), r"field image: shape \(3, 2\) does not fit"),
        (np.zeros((3, 0, 2), np.uint8), r"field image: expected at least one element, got shape \(3, 0, 2\)"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(array: np.ndarray, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        record.encode(Schema((IMAGE,)), {"image": array})
    two = Schema((IMAGE, FieldSpec("mask", "uint8", (1,))))
    with pytest.raises(FormatError):
        record.encode(two, {"image": array, "mask": np.zeros(1, np.uint8)})


def test_other_fields_than_the_schemas_are_refused() -> None:
    with pytest.raises(FormatError, match=r"expected the array fields \['image'\], got \['picture'\]"):
        record.encode(Schema((IMAGE,)), {"picture": np.zeros((3, 2, 2), np.uint8)})


@given(samples(), st.sampled_from([-1, 1, 64]))
def test_a_record_of_another_length_is_refused(sample: tuple[Schema, dict[str, np.ndarray]], extra: int) -> None:
    schema, arrays = sample
    stored = record.encode(schema, arrays)
    wrong = np.zeros(len(stored) + extra, np.uint8)
    with pytest.raises(FormatError, match=f"must have {len(stored)} bytes, got {len(wrong)}"):
        record.decode(schema, wrong, [arrays[spec.name].shape for spec in schema.arrays])
