import hashlib
import io
import pickle
import struct
import subprocess
import sys
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from precompile.errors import ContentError, RecipeError
from precompile.pipeline import plugins
from precompile.pipeline.engines.exact import Exact, make
from precompile.pipeline.geometry import Geometry
from precompile.pipeline.recipe import make_recipe
from precompile.pipeline.sample import Engine

transforms = pytest.importorskip("torchvision.transforms")

pytestmark = pytest.mark.filterwarnings(r"ignore:::PIL\.")  # pytest undoes the engine's own filter

MODES = {
    "bilinear": transforms.InterpolationMode.BILINEAR,
    "bicubic": transforms.InterpolationMode.BICUBIC,
    "lanczos": transforms.InterpolationMode.LANCZOS,
    "box": transforms.InterpolationMode.BOX,
}


def hwc(data, engine=None):
    return (engine or Exact())(data).array.transpose(1, 2, 0)


def pillow_rgb(data):
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


# Files of the corpus


def test_corpus_pixels_equal_the_reference(good_image, corpus_file):
    result = good_image["result"]
    data = corpus_file(good_image)
    if "16" not in result["mode"]:
        assert hashlib.sha256(hwc(data).tobytes()).hexdigest() == result["rgb_sha256"]
    else:
        native = np.asarray(Image.open(io.BytesIO(data))).astype(float)
        assert np.array_equal(hwc(data), np.rint(native / 257).astype(np.uint8)[..., None].repeat(3, axis=2))


def test_corpus_parity_equals_plain_convert(good_image, corpus_file):
    data = corpus_file(good_image)
    plain = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(hwc(data, make(make_recipe(parity="torchvision"))), plain)


def test_corpus_failures_have_a_reason(bad_image, corpus_file):
    messages = set()
    for _ in range(2):
        with pytest.raises(ContentError) as error:
            Exact()(corpus_file(bad_image))
        messages.add(str(error.value))
    (message,) = messages
    assert message
    assert "\n" not in message
    assert "0x" not in message


# Orientation


@pytest.mark.parametrize("value", range(1, 9))
def test_orientations(value, photo, with_orientation):
    data = with_orientation(photo(24, 40), value)
    assert np.array_equal(hwc(data), pillow_rgb(data))
    assert hwc(data).shape == ((24, 40, 3) if value < 5 else (40, 24, 3))


def test_orientation_comes_before_resizing(photo, with_orientation):
    data = with_orientation(photo(24, 40), 6)
    expected = Image.fromarray(pillow_rgb(data)).resize((10, 30), Image.Resampling.BILINEAR)
    assert np.array_equal(hwc(data, Exact(Geometry((30, 10), "stretch"))), np.asarray(expected))


def test_orientation_behind_the_pixels_of_a_png(photo, encode):
    exif = Image.Exif()
    exif[0x0112] = 8
    data = encode(photo(8, 12), "PNG")
    body = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(body)) + b"eXIf" + body + struct.pack(">I", zlib.crc32(b"eXIf" + body))
    assert hwc(data[:-12] + chunk + data[-12:]).shape == (12, 8, 3)


@pytest.mark.parametrize("value", [0, 9, 77])
def test_orientation_out_of_range_is_ignored(value, photo, with_orientation):
    assert hwc(with_orientation(photo(8, 12), value)).shape == (8, 12, 3)


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0nonsense", b"Exif\0\0II*\0\xff\xff\xff\x7f", b"Exif\0\0MM\0*\0\0"]
)
def test_broken_exif_is_no_error(exif, photo, encode):
    assert hwc(encode(photo(8, 12), exif=exif)).shape == (8, 12, 3)


def test_parity_ignores_orientation(photo, with_orientation):
    data = with_orientation(photo(8, 12), 6)
    assert hwc(data, make(make_recipe(parity="torchvision"))).shape == (8, 12, 3)


# Geometry


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    size=st.integers(1, 60),
    crop=st.integers(1, 70),
    filter=st.sampled_from(sorted(MODES)),
)
def test_resize_and_crop_equal_torchvision(height, width, size, crop, filter):
    pixels = np.random.default_rng(height * 100 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, "BMP")
    expected = transforms.CenterCrop(crop)(transforms.Resize(size, MODES[filter])(image))
    array = Exact(Geometry(size, crop=crop), filter)(buffer.getvalue()).array
    assert np.array_equal(array.transpose(1, 2, 0), np.asarray(expected))


def test_max_side_equals_torchvision(photo, encode):
    image = photo(300, 31)
    expected = transforms.Resize(20, max_size=77)(image)
    assert np.array_equal(hwc(encode(image, "PNG"), Exact(Geometry(20, max_side=77))), np.asarray(expected))


def test_letterbox_is_zero_around_the_resized_image(photo, encode):
    image = photo(20, 40)
    result = hwc(encode(image, "PNG"), Exact(Geometry((32, 32), "pad")))
    assert np.array_equal(result[8:24], np.asarray(image.resize((32, 16), Image.Resampling.BILINEAR)))
    assert not result[:8].any()
    assert not result[24:].any()


@pytest.mark.parametrize(
    "geometry", [Geometry(), Geometry(16, crop=12), Geometry((9, 30), "pad"), Geometry(5, "exact")]
)
def test_spec_and_memory_order(geometry, photo, encode):
    data = encode(photo(20, 40), "PNG")
    planes = Exact(geometry)(data).array
    assert planes.flags.c_contiguous
    assert planes.dtype == np.uint8
    engine = Exact(geometry, encoding="raw_hwc")
    array = engine(data).array
    assert array.transpose(1, 2, 0).flags.c_contiguous
    assert np.array_equal(array, planes)
    assert engine.spec().encoding == "raw_hwc"
    assert engine.spec().complete(array.shape) == array.shape


# Modes


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


# Bad input


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty file (0 bytes)"),
        (b"this is text, not a picture", "not an image in a format that Pillow can read"),
        (b"\xff\xd8\xff\xe0", "not an image in a format that Pillow can read"),
    ],
)
def test_not_an_image(data, message):
    with pytest.raises(ContentError) as error:
        Exact()(data)
    assert str(error.value) == message
    assert error.value.stage == "decode"


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"])
def test_truncated_files_raise(format, photo, encode):
    data = encode(photo(64, 64), format)
    with pytest.raises(ContentError):
        Exact()(data[: len(data) * 2 // 3])


@pytest.mark.parametrize("max_pixels", [1, 99])
def test_more_than_max_pixels_is_refused(max_pixels, photo, encode):
    data = encode(photo(10, 10), "PNG")
    with pytest.raises(ContentError, match=rf"100 pixels are more than max_pixels={max_pixels}\Z"):
        Exact(max_pixels=max_pixels)(data)
    assert hwc(data, Exact(max_pixels=100)).shape == (10, 10, 3)


def test_max_pixels_alone_decides(photo, encode, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    assert hwc(encode(photo(10, 10), "PNG")).shape == (10, 10, 3)
    assert Image.MAX_IMAGE_PIXELS == 4


def test_a_sliver_is_not_blown_up(photo, encode):
    with pytest.raises(ContentError, match=r"1x200 resized to 100x20000 is more than max_pixels=1000000\Z") as error:
        Exact(Geometry(100), max_pixels=1_000_000)(encode(photo(1, 200), "PNG"))
    assert error.value.stage == "transform"


def test_warnings_of_pillow_are_not_shown(encode):
    program = (
        "import sys; from precompile.pipeline.engines.exact import Exact;"
        "print(Exact(max_pixels=150)(sys.stdin.buffer.read()).array.shape)"
    )
    image = Image.new("P", (10, 10))
    image.putpalette(range(6))
    data = encode(image, "PNG", transparency=b"\x00\x80")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            Image.open(io.BytesIO(data)).convert("RGB")
    done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=True)
    assert done.stdout.split() == b"(3, 10, 10)".split()
    assert done.stderr == b""


# Contract


def test_engine_is_deterministic_and_picklable(photo, encode):
    engine = make(make_recipe(size=20, crop=16, filter="bicubic"))
    data = encode(photo(30, 50))
    again = pickle.loads(pickle.dumps(engine))
    assert isinstance(engine, Engine)
    assert again == engine
    assert np.array_equal(again(data).array, engine(data).array)


def test_exact_does_not_import_torch_or_opencv():
    program = (
        "import sys; import precompile.pipeline.engines.exact; print([m for m in ('torch', 'cv2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


def test_make_takes_the_recipe():
    recipe = make_recipe(size="8x9", fit="pad", filter="box", layout="HWC", background="1,2,3", max_pixels=77)
    assert plugins.load("engines", "exact").make(recipe) == Exact(
        Geometry((8, 9), "pad"), "box", background=(1, 2, 3), encoding="raw_hwc", max_pixels=77
    )
    assert make(make_recipe(encoding="bmp")).spec().encoding == "bmp"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Exact(filter="nearest"),
            "filter must be one of bilinear, bicubic, lanczos, box, got filter='nearest'",
        ),
        (lambda: Exact(gray16="mean"), "gray16 must be scale or clip, got gray16='mean'"),
        (lambda: Exact(background=(0, 0, 256)), "background must be R,G,B from 0 to 255, got background=(0, 0, 256)"),
        (lambda: Exact(max_pixels=0), "max_pixels must be at least 1, got max_pixels=0"),
        (lambda: make(make_recipe(dtype="float16")), "images are stored as uint8, got dtype=float16"),
    ],
)
def test_wrong_options_are_named(call, message):
    with pytest.raises(RecipeError) as error:
        call()
    assert str(error.value) == message
