"""Images with Pillow: the reference pixels that PIL and torchvision give."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from precompile.errors import ContentError, RecipeError
from precompile.format.schema import FieldSpec
from precompile.pipeline.engines import _gray, _layout, _pillow
from precompile.pipeline.geometry import Geometry, Resizing
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import Decoded

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
}


@dataclass(frozen=True, slots=True)
class Exact:
    """Equals `PIL.Image.open`, `ImageOps.exif_transpose`, `.convert("RGB")` and torchvision's transforms on it.

    One exception: gray of more than 8 bits is scaled by its type's range, where Pillow clips. First frame of
    animations. Raises ContentError for anything else than a whole image.
    """

    geometry: Geometry = field(default_factory=Geometry)
    filter: str = "bilinear"
    """bilinear, bicubic, lanczos or box; always antialiased."""
    exif_orientation: bool = True
    gray16: str = "scale"
    """`scale`: gray of 16 and 32 bits by its type's range, floats from [0, 1]. `clip`: as Pillow's convert."""
    background: tuple[int, int, int] | None = None
    """RGB to composite transparent images on; None drops alpha as Pillow does. Deep gray has no alpha."""
    encoding: str = "raw"
    """raw, raw_hwc or bmp."""
    max_pixels: int = 178_956_970
    """Larger images are refused, before they are decoded or resized."""

    def __post_init__(self) -> None:
        if self.filter not in FILTERS:
            raise RecipeError(f"filter must be one of {', '.join(FILTERS)}, got filter={self.filter!r}")
        if self.gray16 not in ("scale", "clip"):
            raise RecipeError(f"gray16 must be scale or clip, got gray16={self.gray16!r}")
        if self.background is not None and not all(0 <= value <= 255 for value in self.background):
            raise RecipeError(f"background must be R,G,B from 0 to 255, got background={self.background}")
        if self.max_pixels < 1:
            raise RecipeError(f"max_pixels must be at least 1, got max_pixels={self.max_pixels}")

    def spec(self) -> FieldSpec:
        """uint8 (3, height, width), RGB; None where the size varies."""
        return FieldSpec("image", "uint8", (3, *self.geometry.output_shape), self.encoding)

    def load(self) -> None:
        """Nothing more is needed."""

    def __call__(self, data: bytes) -> Decoded:
        with _pillow.decoding(self.max_pixels):
            image = self.decode(data)
            plan = self.plan(image.height, image.width)
            return Decoded(self.resize(image, plan))

    def decode(self, data: bytes) -> Image.Image:
        """The oriented RGB image in its own size. Call it inside `_pillow.decoding`."""
        image = _pillow.open_image(data)
        image.load()
        orientation = _pillow.orientation(image) if self.exif_orientation else 1
        if self.gray16 == "scale" and _gray.is_deep(image):
            image = _gray.to_8_bits(image)
        image = _pillow.turned(image, orientation)
        if self.background is not None and image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, (*self.background, 255)), image)
        return image if image.mode == "RGB" else image.convert("RGB")  # which would copy

    def plan(self, height: int, width: int) -> Resizing:
        """The geometry of one image; a result of more than max_pixels (an extreme aspect) is a ContentError."""
        plan = _plan(self.geometry, height, width)
        if plan.height * plan.width > max(self.max_pixels, height * width):
            raise ContentError(
                f"{height}x{width} resized to {plan.height}x{plan.width} is more than max_pixels={self.max_pixels}",
                stage="transform",
            )
        return plan

    def resize(self, image: Image.Image, plan: Resizing) -> np.ndarray:
        """uint8 (3, height, width) in the memory order of `encoding`."""
        if image.size != (plan.width, plan.height):
            image = image.resize((plan.width, plan.height), FILTERS[self.filter])
        top, left, height, width = plan.box
        if (height, width) != (plan.height, plan.width):
            image = image.crop((left, top, left + width, top + height))
        array, box = _layout.allocate(plan, self.encoding)
        box[...] = np.asarray(image).transpose(2, 0, 1)
        return array


@functools.lru_cache(maxsize=1024)
def _plan(geometry: Geometry, height: int, width: int) -> Resizing:
    return geometry.plan(height, width)


def make(recipe: Recipe) -> Exact:
    """Raises RecipeError when the recipe asks for what images cannot have."""
    if recipe.dtype not in (None, "uint8"):
        raise RecipeError(f"images are stored as uint8, got dtype={recipe.dtype}")
    return Exact(
        geometry=Geometry(recipe.size, recipe.fit, recipe.crop, recipe.max_side),
        filter=recipe.filter,
        exif_orientation=recipe.parity != "torchvision",
        gray16="clip" if recipe.parity == "torchvision" else "scale",
        background=recipe.background,
        encoding="bmp" if recipe.encoding == "bmp" else "raw_hwc" if recipe.layout == "HWC" else "raw",
        max_pixels=recipe.max_pixels,
    )
