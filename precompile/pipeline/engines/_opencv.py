"""OpenCV, one thread: decoding a JPEG, turning it, splitting its channels."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

cv2.setNumThreads(0)
cv2.ocl.setUseOpenCL(False)

_RGB = getattr(cv2, "IMREAD_COLOR_RGB", None)  # OpenCV 4.11
_TURN: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda pixels: pixels,
    2: lambda pixels: cv2.flip(pixels, 1),
    3: lambda pixels: cv2.rotate(pixels, cv2.ROTATE_180),
    4: lambda pixels: cv2.flip(pixels, 0),
    5: cv2.transpose,
    6: lambda pixels: cv2.rotate(pixels, cv2.ROTATE_90_CLOCKWISE),
    7: lambda pixels: cv2.rotate(cv2.transpose(pixels), cv2.ROTATE_180),
    8: lambda pixels: cv2.rotate(pixels, cv2.ROTATE_90_COUNTERCLOCKWISE),
}


def decode(data: bytes, orientation: int) -> np.ndarray | None:
    """uint8 (height, width, 3) RGB, turned by an EXIF orientation from 1 to 8; None when OpenCV refuses."""
    try:
        if _RGB is not None:
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), _RGB | cv2.IMREAD_IGNORE_ORIENTATION)
        else:
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
            pixels = None if pixels is None else cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    except cv2.error:
        return None
    return None if pixels is None else _TURN[orientation](pixels)


def split_channels(pixels: np.ndarray, planes: np.ndarray) -> None:
    """uint8 (height, width, 3) -> into (3, height, width); much faster than a transposing copy by numpy."""
    cv2.split(pixels, list(planes))
