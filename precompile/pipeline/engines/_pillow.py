"""Pillow, made predictable: one pixel limit, errors as one line without addresses, a broken EXIF tag is no error."""

from __future__ import annotations

import functools
import io
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import ExifTags, Image, UnidentifiedImageError

from precompile.errors import ContentError

_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@contextmanager
def decoding(max_pixels: int) -> Iterator[None]:
    """Around all use of Pillow on one file: errors become ContentError; larger images are refused undecoded."""
    _hush()
    before = Image.MAX_IMAGE_PIXELS
    # Pillow warns above its limit and raises above twice of it, for frames and embedded images as well.
    Image.MAX_IMAGE_PIXELS = max_pixels / 2  # type: ignore[assignment]
    try:
        yield
    except (ContentError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        pixels = re.search(r"\d+", str(error))
        raise ContentError(f"{pixels[0] if pixels else '?'} pixels are more than max_pixels={max_pixels}") from error
    except UnidentifiedImageError as error:
        raise ContentError("not an image in a format that Pillow can read") from error
    except Exception as error:  # whatever a decoder trips over lies in the bytes: they are in memory
        raise ContentError(_one_line(error)) from error
    finally:
        Image.MAX_IMAGE_PIXELS = before


def open_image(data: bytes) -> Image.Image:
    """The image with its header read, pixels not yet decoded."""
    if not data:
        raise ContentError("empty file (0 bytes)")
    return Image.open(io.BytesIO(data))


def orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8; 1 when the tag is missing, broken or out of range.

    As ImageOps.exif_transpose reads it. Load the pixels first: in a PNG the tag may stand behind them.
    """
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except (SyntaxError, ValueError, TypeError, LookupError, EOFError, OSError, OverflowError, struct.error):
        return 1
    return value if value in _TRANSPOSE else 1


def turned(image: Image.Image, value: int) -> Image.Image:
    """The image as an EXIF orientation of `value` wants it shown."""
    return image if value == 1 else image.transpose(_TRANSPOSE[value])


@functools.cache
def _hush() -> None:
    # Once, not per call: catch_warnings is slow and not safe with threads.
    warnings.filterwarnings("ignore", module=r"PIL\.")


def _one_line(error: Exception) -> str:
    text = re.sub(r" ?<[^>]* at 0x[0-9a-fA-F]+>", "", " ".join(str(error).split()))
    return text or type(error).__name__
