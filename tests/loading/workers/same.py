"""Whether two batches, or other structures of tensors, arrays and values, are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def assert_same(found: Any, expected: Any, *, strides: bool = True) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert not strides or found.stride() == expected.stride()
        assert torch.equal(found, expected)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        assert_same(list(found.values()), list(expected.values()), strides=strides)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            assert_same(one, other, strides=strides)
    else:
        assert found == expected
