"""Sizes, crops and padding: pure arithmetic, the same for every engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from precompile.errors import RecipeError

FITS = ("short", "exact", "pad", "stretch")


@dataclass(frozen=True, slots=True)
class Resizing:
    """What to do with one image: resize it, cut a box out of the result, put zeros around the box."""

    height: int
    """Pixels after resizing; equal to the image's own when it stays as it is."""
    width: int
    box: tuple[int, int, int, int]
    """(top, left, height, width) inside the resized image; height or width is 0 when only padding is left."""
    padding: tuple[int, int, int, int]
    """(left, top, right, bottom): pixels of value 0 to put around the box."""

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width) of the result."""
        left, top, right, bottom = self.padding
        return top + self.box[2] + bottom, left + self.box[3] + right

    @property
    def is_padded(self) -> bool:
        return any(self.padding)


@dataclass(frozen=True, slots=True)
class Geometry:
    """The wanted geometry. Raises RecipeError when the values do not fit together.

    fit `short`: torchvision's `Resize(size, max_size=max_side)`; with max_side alone only images with a longer
    side shrink. `exact`: scale to cover HxW, then cut the center. `pad`: scale to fit into HxW, center it, zeros
    around it. `stretch`: HxW, the aspect ignored. crop: torchvision's `CenterCrop(crop)` after it.
    Lengths that follow from the aspect ratio are truncated, as torchvision does, and at least 1.
    """

    size: int | tuple[int, int] | None = None
    """Pixels: the shorter side (`short`), or (height, width); N means NxN."""
    fit: str = "short"
    crop: int | None = None
    """Pixels: the side of the square that is cut."""
    max_side: int | None = None
    """Pixels: upper limit of the longer side, for `short`."""

    def __post_init__(self) -> None:
        if self.fit not in FITS:
            raise RecipeError(f"fit must be one of {', '.join(FITS)}, got fit={self.fit!r}")
        sides = self.size if isinstance(self.size, tuple) else (self.size,)
        for name, value in (*(("size", side) for side in sides), ("crop", self.crop), ("max_side", self.max_side)):
            if value is not None and value < 1:
                raise RecipeError(f"{name} must be at least 1, got {name}={value}")
        if self.fit == "short" and isinstance(self.size, tuple):
            raise RecipeError(f"fit=short needs size=N, got size={self.size[0]}x{self.size[1]}")
        if self.fit != "short" and self.size is None:
            raise RecipeError(f"fit={self.fit} needs size=HxW, got no size")
        if self.fit != "short" and self.max_side is not None:
            raise RecipeError(f"max_side={self.max_side} needs fit=short: fit={self.fit} has a fixed size already")

    @property
    def output_shape(self) -> tuple[int | None, int | None]:
        """(height, width) of every result; None where it varies from image to image."""
        if self.crop is not None:
            return self.crop, self.crop
        return self._target if self.fit != "short" else (None, None)

    def plan(self, height: int, width: int) -> Resizing:
        """How an image of height x width pixels (each at least 1) becomes the result."""
        assert height >= 1
        assert width >= 1
        new_height, new_width = self._resized(height, width)
        rows, columns = _Axis(0, new_height, 0, 0), _Axis(0, new_width, 0, 0)
        if self.fit == "exact" or self.fit == "pad":
            rows, columns = rows.centered(self._target[0]), columns.centered(self._target[1])
        if self.crop is not None:
            rows, columns = rows.centered(self.crop), columns.centered(self.crop)
        box = (rows.start, columns.start, rows.length, columns.length)
        return Resizing(new_height, new_width, box, (columns.before, rows.before, columns.after, rows.after))

    @property
    def _target(self) -> tuple[int, int]:
        assert self.size is not None
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        if self.fit == "short":
            short, long = self._short(*sorted((height, width)))
            return (long, short) if width <= height else (short, long)
        target_height, target_width = self._target
        if self.fit == "stretch":
            return target_height, target_width
        # Cover takes the larger of the two scales, letterbox the smaller; the other axis follows from the aspect.
        width_decides = target_width * height >= target_height * width
        if width_decides == (self.fit == "exact"):
            return max(1, int(target_width * height / width)), target_width
        return target_height, max(1, int(target_height * width / height))

    def _short(self, short: int, long: int) -> tuple[int, int]:
        """torchvision.transforms.functional._compute_resized_output_size, on (shorter, longer)."""
        if isinstance(self.size, int):
            short, long = self.size, int(self.size * long / short)
        if self.max_side is not None and long > self.max_side:
            short, long = max(1, int(self.max_side * short / long)), self.max_side
        return short, long


class _Axis(NamedTuple):
    """One axis: `length` pixels of the image from `start` on, with zeros before and after."""

    start: int
    length: int
    before: int
    after: int

    def centered(self, size: int) -> _Axis:
        """A window of `size` pixels in the center, placed as torchvision.transforms.functional.center_crop does."""
        total = self.before + self.length + self.after
        first = -((size - total) // 2) if size > total else round((total - size) / 2)
        begin = min(max(first - self.before, 0), self.length)
        end = max(min(first + size - self.before, self.length), begin)
        before = min(max(self.before - first, 0), size)
        return _Axis(self.start + begin, end - begin, before, size - before - (end - begin))
