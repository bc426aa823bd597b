"""Pixel modes: what becomes of palettes, alpha and gray of more than 8 bits."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from precompile.errors import ContentError
from precompile.pipeline.engines.exact import Exact, make
from precompile.pipeline.recipe import make_recipe

pytestmark = pytest.mark.filterwarnings(r"ignore:::PIL\.")  # pytest undoes the engine's own filter


def hwc(data, engine=None):
    return (engine or Exact())(data).array.transpose(1, 2, 0)


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "CMYK", "YCbCr", "LAB", "RGBA", "LA", "P", "PA"])
def test_modes_equal_convert(mode, photo, encode):
    image = photo(9, 14).convert("RGBA" if mode == "PA" else "RGB")
    image = Image.merge("LAB", image.split()) if mode == "LAB" else image.convert("P" if mode == "PA" else mode)
    format = "TIFF" if mode in ("CMYK", "YCbCr", "LAB") else "PNG"
    data = encode(image, format)
    assert np.array_equal(hwc(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_cmyk_jpeg_equals_convert(photo, encode):
    data = encode(photo(9, 14).convert("CMYK"))
    assert np.array_equal(hwc(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_alpha_is_dropped_or_composited(encode):
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[0] = (200, 100, 0, 0)
    pixels[1] = (200, 100, 0, 255)
    data = encode(Image.fromarray(pixels), "PNG")
    assert hwc(data)[0, 0].tolist() == [200, 100, 0]
    on_blue = hwc(data, make(make_recipe(background="0,0,255")))
    assert on_blue[0, 0].tolist() == [0, 0, 255]
    assert on_blue[1, 0].tolist() == [200, 100, 0]


def test_transparent_palette_entry_is_composited(encode):
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    data = encode(image, "PNG", transparency=0)
    assert hwc(data).tolist() == [[[10, 20, 30], [40, 50, 60]]]
    assert hwc(data, Exact(background=(255, 255, 255))).tolist() == [[[255, 255, 255], [40, 50, 60]]]


def test_first_frame_of_an_animation(photo, encode):
    first, second = photo(8, 8, 1), photo(8, 8, 2)
    data = encode(first, "PNG", save_all=True, append_images=[second])
    assert np.array_equal(hwc(data), np.asarray(first))


def scaled(values, low, high):
    return np.array([round(255 * (int(v) - low) / (high - low)) for v in values.ravel()]).reshape(values.shape)


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_unsigned_16_bits_are_scaled(format, encode):
    values = np.arange(0, 65536, 13, dtype=np.uint16)[:5040].reshape(70, 72)
    assert np.array_equal(hwc(encode(Image.fromarray(values), format))[..., 0], scaled(values, 0, 65535))


def test_big_endian_16_bits_are_scaled(encode):
    values = np.array([[0, 255, 256, 65535]], np.uint16)
    image = Image.frombytes("I;16B", (4, 1), values.astype(">u2").tobytes())
    assert hwc(encode(image, "TIFF"))[..., 0].tolist() == [[0, 1, 1, 255]]


def test_pgm_of_16_bits_is_scaled():
    values = np.array([[0, 257, 32768, 65535]], ">u2")
    assert hwc(b"P5 4 1 65535\n" + values.tobytes())[..., 0].tolist() == [[0, 1, 128, 255]]
    assert hwc(b"P2 3 1 4095\n0 2048 4095\n")[..., 0].tolist() == [[0, 128, 255]]


def tiff_gray(values, sample_format):
    """A little-endian TIFF of one strip, with the sample format: 1 unsigned, 2 signed, 3 float."""
    height, width = values.shape
    strip = values.astype(values.dtype.newbyteorder("<")).tobytes()
    tags = [(256, width), (257, height), (258, values.itemsize * 8), (259, 1), (262, 1), (273, 8), (277, 1)]
    tags += [(278, height), (279, len(strip)), (339, sample_format)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    directory = struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)
    return struct.pack("<2sHI", b"II", 42, 8 + len(strip)) + strip + directory


@pytest.mark.parametrize(("dtype", "sample_format"), [("int16", 2), ("uint32", 1), ("int32", 2), ("uint16", 1)])
def test_gray_is_scaled_by_the_range_of_its_type(dtype, sample_format):
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    values = np.array([[low, low + 1, low + (high - low) // 3, high - 1, high]], dtype)
    assert np.array_equal(hwc(tiff_gray(values, sample_format))[..., 0], scaled(values, low, high))


def test_float_gray_is_nominally_0_to_1():
    assert hwc(tiff_gray(np.array([[0.0, 0.5, 1.0]], "float32"), 3))[..., 0].tolist() == [[0, 128, 255]]


@pytest.mark.parametrize("value", [-0.1, 1.5, np.nan, np.inf])
def test_float_gray_outside_is_refused_with_its_range(value):
    with pytest.raises(ContentError, match=r"gray float pixels must lie in \[0, 1\], got a range of \["):
        Exact()(tiff_gray(np.array([[0.5, value]], "float32"), 3))


def test_parity_clips_16_bits(encode):
    data = encode(Image.fromarray(np.array([[0, 200, 300, 65535]], np.uint16)), "PNG")
    assert hwc(data, make(make_recipe(parity="torchvision")))[..., 0].tolist() == [[0, 200, 255, 255]]
