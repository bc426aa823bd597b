"""torch's antialiased uint8 kernels, computing no more of the resized image than the crop needs."""

from __future__ import annotations

import numpy as np
import torch

from precompile.pipeline.geometry import Resizing

_KERNELS = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa,
}
"""What torch.nn.functional.interpolate(antialias=True) calls."""
_SUPPORT = {"bilinear": 1, "bicubic": 2}
"""Half the width of the filter, in pixels of the coarser grid."""


def upsample(pixels: np.ndarray, plan: Resizing, name: str) -> np.ndarray:
    """uint8 (3, at least bottom, at least right): the resized image as far as the box reaches, not much more."""
    old_height, old_width = pixels.shape[:2]
    bottom, right = plan.box[0] + plan.box[2], plan.box[1] + plan.box[3]
    # Whole rows, so that the kernel reads channels_last memory as it is; it would copy a slice of columns.
    rows = min(old_height, _rows_needed(bottom, old_height / plan.height, _SUPPORT[name]))
    if rows == bottom or right == old_width or not bottom or not right:
        # The kernel takes an axis of equal length in and out for unscaled, whatever the scale is.
        rows, bottom, right = old_height, plan.height, plan.width
    source = torch.from_numpy(pixels[:rows]).permute(2, 0, 1).unsqueeze(0)
    scales = plan.height / old_height, plan.width / old_width
    result: np.ndarray = _KERNELS[name](source, [bottom, right], False, *scales)[0].numpy()
    return result


def _rows_needed(bottom: int, scale: float, support: int) -> int:
    """How many source rows the first `bottom` rows of the result depend on, and a few more to be safe."""
    return int(bottom * scale + support * max(scale, 1.0)) + 3
