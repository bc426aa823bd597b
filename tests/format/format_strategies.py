"""Random schemas with samples that fit them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from precompile.format.schema import ARRAY_DTYPES, ENCODINGS, TEXT, FieldSpec, Schema

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)


def filled(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Any bytes at all, so also NaN and infinities."""
    size = ARRAY_DTYPES[dtype] * int(np.prod(shape))
    return np.frombuffer(np.random.default_rng(seed).bytes(size), dtype).reshape(shape)


@st.composite
def array_fields(draw: st.DrawFn, encodings: tuple[str, ...] = ENCODINGS) -> tuple[FieldSpec, tuple[int, ...]]:
    """An array field, with any axes varying, and a full shape for it."""
    encoding = draw(st.sampled_from(encodings))
    if encoding == "raw":
        dtype = draw(st.sampled_from(list(ARRAY_DTYPES)))
        shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    else:
        dtype = "uint8"
        shape = (draw(st.sampled_from((1, 3, 4))), draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    declared = tuple(None if draw(st.booleans()) else size for size in shape)
    return FieldSpec(draw(names), dtype, declared, encoding, draw(st.text(max_size=5))), shape


@st.composite
def samples(draw: st.DrawFn) -> tuple[Schema, dict[str, np.ndarray]]:
    """A schema of one to three array fields, and a sample of it."""
    fields = draw(st.lists(array_fields(), min_size=1, max_size=3, unique_by=lambda field: field[0].name))
    seed = draw(st.integers(0, 2**32))
    schema = Schema(tuple(spec for spec, _ in fields))
    return schema, {spec.name: filled(spec.dtype, shape, seed + i) for i, (spec, shape) in enumerate(fields)}


columns = st.builds(
    FieldSpec, names, st.sampled_from([*ARRAY_DTYPES, TEXT]), st.just(()), st.just("raw"), st.text(max_size=5)
)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Array fields and columns in any order."""
    arrays = draw(st.lists(array_fields().map(lambda field: field[0]), min_size=1, max_size=3))
    fields = draw(st.permutations(arrays + draw(st.lists(columns, max_size=3))))
    return Schema(tuple({field.name: field for field in fields}.values()) if _has_array(fields) else tuple(arrays[:1]))


def _has_array(fields: list[FieldSpec]) -> bool:
    return any(not field.is_column for field in {field.name: field for field in fields}.values())
