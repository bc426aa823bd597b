import hashlib
import io
import pickle
import struct
import subprocess
import sys
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
