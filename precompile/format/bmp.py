"""Images as whole .bmp files whose pixels start at a multiple of 64, and back by slicing, without a decoder."""

from __future__ import annotations

import struct
from typing import TypeVar

import numpy as np

from precompile.errors import FormatError
from precompile.format.schema import align

Size = TypeVar("Size", int, np.ndarray)

_FILE_HEADER = "<2sIHHI"
_INFO_HEADER = "<IiiHHIIiiII"
_V4_TAIL = "<IIII4s36s12s"
_BYTES_PER_METRE = 2835  # 72 dpi, which every viewer takes as "no opinion"


def pixel_offset(channels: int) -> int:
    """Where the pixels start (bfOffBits): headers, and the gray palette, rounded up to 64."""
    header = {1: 14 + 40 + 1024, 3: 14 + 40, 4: 14 + 108}.get(channels)
    if header is None:
        raise FormatError(f"a bmp image must have 1, 3 or 4 channels, got {channels}")
    return align(header)


def row_stride(channels: Size, width: Size) -> Size:
    """Bytes from one row of pixels to the next: a multiple of 4. Numbers, or arrays of them."""
    stride: Size = -(-channels * width // 4) * 4
    return stride


def num_bytes(shape: tuple[int, ...]) -> int:
    """Size of the file for an image of shape (channels, height, width)."""
    channels, height, width = shape
    return pixel_offset(channels) + row_stride(channels, width) * height


def pack(image: np.ndarray) -> np.ndarray:
    """uint8 (channels, height, width) in gray, RGB or RGBA -> the bytes of a .bmp file, uint8 (bytes,)."""
    channels, height, width = image.shape
    start, stride = pixel_offset(channels), row_stride(channels, width)
    out = np.zeros(num_bytes(image.shape), np.uint8)
    header = struct.pack(_FILE_HEADER, b"BM", len(out), 0, 0, start)
    palette = b""
    size, compression = 40, 0
    if channels == 1:
        palette = np.repeat(np.arange(256, dtype="<u4") * 0x010101, 1).tobytes()
    if channels == 4:
        size, compression = 108, 3
        palette = struct.pack(_V4_TAIL, 0xFF0000, 0xFF00, 0xFF, 0xFF000000, b"BGRs", bytes(36), bytes(12))
    header += struct.pack(
        _INFO_HEADER, size, width, height, 1, 8 * channels, compression, stride * height,
        _BYTES_PER_METRE, _BYTES_PER_METRE, 256 if channels == 1 else 0, 0,
    )  # fmt: skip
    header += palette
    out[: len(header)] = np.frombuffer(header, np.uint8)
    rows = out[start:].reshape(height, stride)[::-1, : channels * width].reshape(height, width, channels)
    for channel, stored in enumerate(_stored_order(channels)):
        rows[:, :, stored] = image[channel]
    return out


def unpack(data: np.ndarray, shape: tuple[int, ...], out: np.ndarray | None = None) -> np.ndarray:
    """Bytes of .bmp files made by `pack`, uint8 (..., bytes), -> uint8 (..., channels, height, width), fresh or `out`.

    BGR, bottom-up rows cost one strided copy. Raises FormatError when a header is not the expected one.
    """
    channels, height, width = shape
    start, stride = pixel_offset(channels), row_stride(channels, width)
    if data.shape[-1] != num_bytes(shape):
        raise FormatError(f"a bmp record of shape {shape} must have {num_bytes(shape)} bytes, got {data.shape[-1]}")
    flat = data.reshape(-1, data.shape[-1])
    expected = pack_header_fields(start, shape)
    for at, value in expected.items():
        if not (flat[:, at : at + len(value)] == np.frombuffer(value, np.uint8)).all():
            raise FormatError(
                f"a bmp record does not have the header of a {width}x{height} image with {channels} channels"
            )
    images = (np.empty((len(flat), *shape), np.uint8) if out is None else out).reshape(len(flat), *shape)
    rows = flat[:, start : start + stride * height].reshape(len(flat), height, stride)[:, ::-1, : channels * width]
    pixels = rows.reshape(len(flat), height, width, channels)
    planes_from_pixels(pixels, images)
    return images.reshape(*data.shape[:-1], *shape)


def planes_from_pixels(pixels: np.ndarray, images: np.ndarray) -> None:
    """Copy pixels as stored, uint8 (n, height, width, channels) with blue first, into (n, channels, height, width)."""
    for channel, stored in enumerate(_stored_order(images.shape[1])):
        images[:, channel] = pixels[:, :, :, stored]


def place_rows(shapes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64 (n, 3) shapes -> where the topmost row of each picture begins in its file, and the step to the next row.

    The step, int64 (n,), is negative: the last row comes first.
    """
    starts = np.array([0, *map(pixel_offset, (1, 3, 3, 4))], np.int64)  # by channels, of which 2 never occurs
    steps = -row_stride(shapes[:, 0], shapes[:, 2])
    return starts.take(shapes[:, 0], mode="clip") - steps * (shapes[:, 1] - 1), steps


def pack_header_fields(start: int, shape: tuple[int, ...]) -> dict[int, bytes]:
    """The header bytes that say where the pixels are and how they lie, by file offset."""
    channels, height, width = shape
    return {
        0: b"BM",
        10: struct.pack("<I", start),
        18: struct.pack("<ii", width, height),
        28: struct.pack("<H", 8 * channels),
    }


def _stored_order(channels: int) -> tuple[int, ...]:
    return {1: (0,), 3: (2, 1, 0), 4: (2, 1, 0, 3)}[channels]
