"""Images with OpenCV and torch: decoded to the same pixels as `exact`, resized to at most one or two levels off."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from precompile.format.schema import FieldSpec
from precompile.pipeline.engines import _jpeg, _layout, _pillow, exact
from precompile.pipeline.engines.exact import Exact
from precompile.pipeline.geometry import Resizing
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import Decoded


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

    def load(self) -> None:
        """Import OpenCV and torch."""
        from precompile.pipeline.engines import _opencv, _upsample  # noqa: F401

    def __call__(self, data: bytes) -> Decoded:
        """uint8 (3, height, width) as `Exact`. Raises ContentError for anything else than a whole image."""
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
        from precompile.pipeline.engines import _opencv  # loaded in workers only

        return _opencv.decode(data, orientation)

    def _resize(self, pixels: np.ndarray, plan: Resizing) -> np.ndarray:
        """uint8 (height, width, 3) -> (3, height, width) in the memory order of the encoding."""
        top, left, height, width = plan.box
        array, box = _layout.allocate(plan, self.exact.encoding)
        if pixels.shape[:2] != (plan.height, plan.width):
            from precompile.pipeline.engines._upsample import upsample  # torch, loaded in workers only

            planes = upsample(pixels, plan, self.exact.filter)
            box[...] = planes[:, top : top + height, left : left + width]
        elif self.exact.encoding == "raw_hwc":
            box[...] = pixels[top : top + height, left : left + width].transpose(2, 0, 1)
        elif height and width:
            from precompile.pipeline.engines import _opencv

            _opencv.split_channels(pixels[top : top + height, left : left + width], box)
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
    return name not in ("bilinear", "bicubic") or (name == "bicubic" and may_start_with_columns)


def make(recipe: Recipe) -> Fast:
    """Raises RecipeError when the recipe asks for what images cannot have."""
    return Fast(exact.make(recipe))
