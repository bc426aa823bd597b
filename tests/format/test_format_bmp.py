from __future__ import annotations

import io
import struct

import cv2
import numpy as np
import pytest
from format_strategies import filled
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from precompile.errors import FormatError
from precompile.format import bmp

images = st.builds(
    lambda channels, height, width, seed: filled("uint8", (channels, height, width), seed),
    st.sampled_from((1, 3, 4)), st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**32),
)  # fmt: skip
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@given(images)
def test_pillow_reads_the_same_pixels(image: np.ndarray) -> None:
    with Image.open(io.BytesIO(bmp.pack(image).tobytes())) as opened:
        found = np.asarray(opened.convert(_MODES[len(image)]))
    assert np.array_equal(found.reshape(*image.shape[1:], len(image)).transpose(2, 0, 1), image)


@given(images)
def test_opencv_reads_the_same_pixels(image: np.ndarray) -> None:
    found = cv2.imdecode(bmp.pack(image), cv2.IMREAD_UNCHANGED)
    assert found is not None
    channels = [0] if found.ndim == 2 else [2, 1, 0, 3][: found.shape[2]]
    found = found.reshape(*found.shape[:2], -1)[:, :, channels].transpose(2, 0, 1)
    # OpenCV gives gray pictures with a palette as three equal channels
    expected = np.broadcast_to(image, found.shape) if len(image) == 1 else image
    assert np.array_equal(found, expected)


@given(images)
def test_pixels_start_at_a_multiple_of_64_in_padded_rows(image: np.ndarray) -> None:
    channels, height, width = image.shape
    file = bmp.pack(image).tobytes()
    magic, size, _, _, start = struct.unpack_from("<2sIHHI", file)
    stride = (channels * width + 3) // 4 * 4
    assert (magic, size, start % 64) == (b"BM", len(file), 0)
    assert start == bmp.pixel_offset(channels)
    assert len(file) == start + stride * height == bmp.num_bytes(image.shape)
    assert struct.unpack_from("<iiHH", file, 18) == (width, height, 1, 8 * channels)
    padding = np.frombuffer(file, np.uint8)[start:].reshape(height, stride)[:, channels * width :]
    assert not padding.any()


@given(images, st.lists(st.integers(1, 3), max_size=2))
def test_unpack_gives_back_what_was_packed(image: np.ndarray, batch: list[int]) -> None:
    count = int(np.prod(batch, dtype=int))
    pictures = np.stack([np.roll(image, number) for number in range(count)])
    stored = np.stack([bmp.pack(picture) for picture in pictures]).reshape(*batch, -1)
    stored.flags.writeable = False
    found = bmp.unpack(stored, image.shape)
    assert np.array_equal(found, pictures.reshape(*batch, *image.shape))
    assert found.flags.writeable
    assert found.flags.c_contiguous


@given(images, st.sampled_from([0, 1, 10, 11, 13, 18, 21, 22, 25, 28, 29]), st.integers(1, 255), st.booleans())
def test_a_damaged_header_is_refused(image: np.ndarray, at: int, change: int, in_batch: bool) -> None:
    stored = bmp.pack(image)
    damaged = stored.copy()
    damaged[at] ^= change
    rows = np.stack([stored, damaged]) if in_batch else damaged
    with pytest.raises(FormatError, match="does not have the header of a"):
        bmp.unpack(rows, image.shape)


@pytest.mark.parametrize("length", [0, 1, 20, 191, 1000])
def test_another_length_is_refused(length: int) -> None:
    with pytest.raises(FormatError, match=rf"a bmp record of shape \(3, 8, 8\) must have 256 bytes, got {length}"):
        bmp.unpack(np.zeros(length, np.uint8), (3, 8, 8))


@pytest.mark.parametrize("channels", [2, 5])
def test_other_channel_counts_are_refused(channels: int) -> None:
    with pytest.raises(FormatError, match=f"must have 1, 3 or 4 channels, got {channels}"):
        bmp.pack(np.zeros((channels, 2, 2), np.uint8))
