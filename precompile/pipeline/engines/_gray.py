"""Gray of more than 8 bits -> 8 bits: scaled by the range of its type, never clipped."""

from __future__ import annotations

import numpy as np
from PIL import Image

from precompile.errors import ContentError

_BITS_PER_SAMPLE, _SAMPLE_FORMAT = 258, 339
_SIGNED = 2


def is_deep(image: Image.Image) -> bool:
    """Whether the image is gray with integers of more than 8 bits, or floats."""
    return image.mode in ("I", "F") or image.mode.startswith("I;")


def to_8_bits(image: Image.Image) -> Image.Image:
    """Mode `L`: round(255 * (v - low) / (high - low)) over the range [low, high] of the file's sample type.

    Integers: 0 to 2^bits - 1, or -2^(bits-1) to 2^(bits-1) - 1 when signed. Floats: 0 to 1; values outside, NaN and
    infinity raise ContentError.
    """
    values = np.asarray(image)
    if image.mode == "F":
        return Image.fromarray(_from_floats(values))
    low, high = _integer_range(image)
    if low == 0 and high > np.iinfo(np.int32).max:
        values = values.view(np.uint32)  # Pillow keeps unsigned 32 bits in a signed array
    span = high - low
    scaled = ((values.astype(np.int64) - low) * 255 + span // 2) // span
    return Image.fromarray(scaled.astype(np.uint8))


def _integer_range(image: Image.Image) -> tuple[int, int]:
    bits, signed = (16, False) if image.mode != "I" or image.format == "PPM" else (32, True)
    tags = getattr(image, "tag_v2", None)
    if tags is not None:
        bits = tags.get(_BITS_PER_SAMPLE, (bits,))[0]
        signed = tags.get(_SAMPLE_FORMAT, (0,))[0] == _SIGNED
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def _from_floats(values: np.ndarray) -> np.ndarray:
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 1):  # also true of NaN
        raise ContentError(f"gray float pixels must lie in [0, 1], got a range of [{low:g}, {high:g}]")
    return np.rint(values.astype(np.float64) * 255).astype(np.uint8)
