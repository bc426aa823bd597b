"""Images with OpenCV and torch: decoded to the same pixels as `exact`, resized to at most one or two levels off."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import cv2
import numpy as np
import torch
from PIL import Image

from precompile.format.schema import FieldSpec
from precompile.pipeline.engines import _jpeg, _layout, _pillow, exact
from precompile.pipeline.engines.exact import Exact
from precompile.pipeline.geometry import Resizing
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import Decoded

_UPSAMPLE = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa,
}
"""What torch.nn.functional.interpolate(antialias=True) calls; called directly to compute no more than the crop."""
_SUPPORT = {"bilinear": 1, "bicubic": 2}
"""Half the width of the filter, in pixels of the coarser grid."""
_RGB = getattr(cv2, "IMREAD_COLOR_RGB", None)  # OpenCV 4.11
_TURN: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda pixels: cv2.flip(pixels, 1),
    3: lambda pixels: cv2.rotate(pixels, cv2.ROTATE_180),
    4: lambda pixels: cv2.flip(pixels, 0),
    5: cv2.transpose,
    6: lambda pixels: cv2.rotate(pixels, cv2.ROTATE_90_CLOCKWISE),
    7: lambda pixels: cv2.rotate(cv2.transpose(pixels), cv2.ROTATE_180),
    8: lambda pixels: cv2.rotate(pixels, cv2.ROTATE_90_COUNTERCLOCKWISE),
}


@dataclass(frozen=True, slots=True)
class Fast:
    """OpenCV decodes ordinary JPEG, pixel-identical to Pillow; `exact` decodes all else and judges what is damaged.

    bilinear, bicubic: torch's antialiased uint8 kernels, at most 1 and 2 levels off Pillow. lanczos, box, and bicubic
    that shrinks the height far more than the width: Pillow.
    """

    exact: Exact = field(default_factory=Exact)
    """Whose fields are the options, and which decodes what is not ordinary."""

    def spec(self) -> FieldSpec:
        """As `Exact.spec`."""
        return self.exact.spec()

    def __call__(self, data: bytes) -> Decoded:
        """uint8 (3, height, width) as `Exact`. Raises ContentError for anything else than a whole image."""
        _one_thread()
        pixels = self._decode_ordinary(data)
        if pixels is None:
            with _pillow.decoding(self.exact.max_pixels):
                pixels = np.array(self.exact.decode(data))
        plan = self.exact.plan(*pixels.shape[:2])
        if _is_for_pillow(self.exact.filter, pixels, plan):
            with _pillow.decoding(self.exact.max_pixels):
                return Decoded(self.exact.resize(Image.fromarray(pixels), plan))
        return Decoded(self._resize(pixels, plan))

    def _decode_ordinary(self, data: bytes) -> np.ndarray | None:
        """uint8 (height, width, 3) RGB of an ordinary JPEG; None when `exact` must decode, or refuse, the file."""
        header = _jpeg.read_ordinary(data)
        if header is None or header.height * header.width > self.exact.max_pixels:
            return None
        orientation = 1
        if header.has_app1 and self.exact.exif_orientation:
            with _pillow.decoding(self.exact.max_pixels):
                orientation = _pillow.orientation(_pillow.open_image(data))
        pixels = _imdecode(data)
        return pixels if pixels is None or orientation == 1 else _TURN[orientation](pixels)

    def _resize(self, pixels: np.ndarray, plan: Resizing) -> np.ndarray:
        """uint8 (height, width, 3) -> (3, height, width) in the memory order of the encoding."""
        top, left, height, width = plan.box
        array, box = _layout.allocate(plan, self.exact.encoding)
        if pixels.shape[:2] != (plan.height, plan.width):
            planes = _upsample(pixels, plan, self.exact.filter)
            box[...] = planes[:, top : top + height, left : left + width]
        elif self.exact.encoding == "raw_hwc":
            box[...] = pixels[top : top + height, left : left + width].transpose(2, 0, 1)
        elif height and width:
            cv2.split(pixels[top : top + height, left : left + width], list(box))
        return array


def _is_for_pillow(name: str, pixels: np.ndarray, plan: Resizing) -> bool:
    """Whether torch has no such filter, or would be further from Pillow than this engine states.

    Between the two passes values are cut to 0..255, so that the order of the passes shows where bicubic overshoots.
    torch resizes rows first; Pillow 13 resizes columns first when the height shrinks by more than twice the pixels
    that the width does (python-pillow/Pillow#9549).
    """
    height, width = pixels.shape[:2]
    if (height, width) == (plan.height, plan.width):
        return False
    may_start_with_columns = height - plan.height > 2 * max(width - plan.width, 0)
    return name not in _UPSAMPLE or (name == "bicubic" and may_start_with_columns)


def _upsample(pixels: np.ndarray, plan: Resizing, name: str) -> np.ndarray:
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
    result: np.ndarray = _UPSAMPLE[name](source, [bottom, right], False, *scales)[0].numpy()
    return result


def _rows_needed(bottom: int, scale: float, support: int) -> int:
    """How many source rows the first `bottom` rows of the result depend on, and a few more to be safe."""
    return int(bottom * scale + support * max(scale, 1.0)) + 3


def _imdecode(data: bytes) -> np.ndarray | None:
    try:
        if _RGB is not None:
            return cv2.imdecode(np.frombuffer(data, np.uint8), _RGB | cv2.IMREAD_IGNORE_ORIENTATION)
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        return None if pixels is None else cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    except cv2.error:
        return None


@functools.cache
def _one_thread() -> None:
    cv2.setNumThreads(0)
    cv2.ocl.setUseOpenCL(False)


def make(recipe: Recipe) -> Fast:
    """Raises RecipeError when the recipe asks for what images cannot have."""
    return Fast(exact.make(recipe))
