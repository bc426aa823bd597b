"""Pixels -> the array that is stored: axis order and zeros around it."""

from __future__ import annotations

import numpy as np

from precompile.pipeline.geometry import Resizing


def allocate(plan: Resizing, encoding: str) -> tuple[np.ndarray, np.ndarray]:
    """A uint8 array (3, height, width) in the memory order of `encoding`, and the view that takes the box.

    Around the box it is 0 already. For `raw_hwc` the array is a transposed view of contiguous (height, width, 3).
    """
    height, width = plan.shape
    new = np.zeros if plan.is_padded else np.empty
    array = (
        new((height, width, 3), np.uint8).transpose(2, 0, 1)
        if encoding == "raw_hwc"
        else new((3, height, width), np.uint8)
    )
    left, top = plan.padding[:2]
    return array, array[:, top : top + plan.box[2], left : left + plan.box[3]]
