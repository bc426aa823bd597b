import io
import pickle
import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from precompile.errors import ContentError
from precompile.pipeline.engines import _jpeg, fast
from precompile.pipeline.engines.exact import Exact
from precompile.pipeline.engines.fast import Fast
from precompile.pipeline.geometry import Geometry
from precompile.pipeline.recipe import make_recipe
from precompile.pipeline.sample import Engine

pytestmark = pytest.mark.filterwarnings(r"ignore:::PIL\.")

JPEG_OPTIONS = [
    {"quality": 80},
    {"quality": 95, "subsampling": 0},
    {"quality": 60, "subsampling": 1},
    {"progressive": True},
    {"optimize": True, "restart_marker_rows": 1},
]
LEVELS = {"bilinear": 1, "bicubic": 2, "lanczos": 0, "box": 0}
"""How far the resized pixels may be from Pillow's."""


def outcome(engine, data):
    """The pixels, or the message of the ContentError."""
    try:
        return engine(data).array
    except ContentError as error:
        return str(error)


def assert_same(data):
    expected, got = outcome(Exact(), data), outcome(Fast(), data)
    assert type(got) is type(expected), (got, expected)
    assert np.array_equal(got, expected)


def adobe_rgb(photo, encode):
    """An RGB JPEG without colour conversion: Pillow writes it with an Adobe marker."""
    return encode(photo(20, 30), quality=90, keep_rgb=True)


def test_corpus_is_as_exact(good_image, corpus_file):
    assert_same(corpus_file(good_image))


def test_corpus_failures_are_as_exact(bad_image, corpus_file):
    with pytest.raises(ContentError):
        Exact()(corpus_file(bad_image))
    assert_same(corpus_file(bad_image))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("options", JPEG_OPTIONS)
@pytest.mark.parametrize("size", [(1, 1), (7, 13), (64, 48), (375, 500)])
def test_ordinary_jpeg_has_the_pixels_of_pillow(size, options, mode, photo, encode):
    data = encode(photo(*size).convert(mode), **options)
    header = _jpeg.read_ordinary(data)
    assert (header.height, header.width) == size
    assert_same(data)


@pytest.mark.parametrize("value", range(1, 9))
def test_orientations(value, photo, with_orientation):
    data = with_orientation(photo(24, 40), value)
    assert_same(data)
    ignoring = Fast(Exact(exif_orientation=False))(data).array
    assert np.array_equal(ignoring, np.asarray(Image.open(io.BytesIO(data))).transpose(2, 0, 1))


def test_broken_exif_is_no_error(photo, encode):
    assert_same(encode(photo(24, 40), exif=b"Exif\0\0nonsense"))


def test_what_is_not_ordinary_goes_to_pillow(photo, encode):
    cmyk, rgb = encode(photo(9, 14).convert("CMYK")), adobe_rgb(photo, encode)
    for data in (cmyk, rgb, encode(photo(9, 14), "PNG"), encode(photo(9, 14), "WEBP"), b"", b"\xff\xd8\xff", b"text"):
        assert _jpeg.read_ordinary(data) is None
        assert_same(data)


@pytest.mark.parametrize("marker", [0xC1, 0xC3, 0xC9, 0xCA])
def test_other_codings_are_not_ordinary(marker, photo, encode):
    data = encode(photo(9, 14))
    assert _jpeg.read_ordinary(data) is not None
    assert _jpeg.read_ordinary(data.replace(b"\xff\xc0", bytes([0xFF, marker]), 1)) is None


@pytest.mark.parametrize("options", JPEG_OPTIONS)
def test_truncated_jpeg_raises(options, photo, encode):
    data = encode(photo(60, 80), **options)
    for keep in range(1, len(data), len(data) // 23):
        assert _jpeg.read_ordinary(data[:keep]) is None
        with pytest.raises(ContentError):
            Fast()(data[:keep])


def test_end_marker_of_a_thumbnail_does_not_hide_a_truncation(photo, encode):
    exif = b"Exif\0\0" + encode(photo(8, 8))
    data = encode(photo(60, 80), exif=exif)
    with pytest.raises(ContentError):
        Fast()(data[:-40])


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), options=st.sampled_from(JPEG_OPTIONS), gray=st.booleans())
def test_damaged_jpeg_is_judged_as_exact_does(seed, options, gray):
    rng = random.Random(seed)
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((90, 60)).convert("L" if gray else "RGB")
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    data = bytearray(buffer.getvalue())
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data))
        damage = rng.choice(["change", "cut", "insert"])
        if damage == "change":
            data[place] = rng.randrange(256)
        elif damage == "cut":
            del data[place : place + rng.randint(1, 30)]
        else:
            data[place:place] = rng.choice([b"\xff\xd9", b"\xff\x24", b"\xff\xda", rng.randbytes(9)])
    assert_same(bytes(data))


@pytest.mark.parametrize("filter", sorted(LEVELS))
@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(256, crop=224),
        Geometry((300, 70), "stretch"),
        Geometry(40, "pad"),
        Geometry((9, 200), "exact"),
        Geometry(500, crop=490),
        Geometry(30, crop=64),
        Geometry((40, 3), "pad", crop=1),
        Geometry(crop=100),
        Geometry(),
    ],
)
@pytest.mark.parametrize("suffix", ["JPEG", "PNG"])
def test_resized_pixels_are_within_the_stated_levels(suffix, geometry, filter, photo, encode):
    data = encode(photo(188, 251), suffix)
    for encoding in ("raw", "raw_hwc"):
        exact = Exact(geometry, filter, encoding=encoding)
        expected, got = exact(data).array, Fast(exact)(data).array
        assert got.shape == expected.shape
        assert got.strides == expected.strides
        assert np.abs(got.astype(int) - expected).max() <= LEVELS[filter]


@settings(max_examples=300, deadline=None)
@given(
    height=st.integers(1, 120),
    width=st.integers(1, 120),
    target=st.tuples(st.integers(1, 120), st.integers(1, 120)),
    fit=st.sampled_from(["short", "stretch", "exact"]),
    crop=st.one_of(st.none(), st.integers(1, 130)),
    filter=st.sampled_from(["bilinear", "bicubic"]),
)
@example(height=151, width=177, target=(159, 1), fit="short", crop=15, filter="bicubic")
@example(height=50, width=40, target=(60, 60), fit="stretch", crop=20, filter="bilinear")
@example(height=40, width=50, target=(60, 60), fit="stretch", crop=20, filter="bilinear")
@example(height=101, width=21, target=(9, 106), fit="stretch", crop=None, filter="bicubic")
def test_hard_edges_of_any_size_are_within_the_stated_levels(height, width, target, fit, crop, filter):
    pixels = 255 * np.random.default_rng(height * 100 + width).integers(0, 2, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "BMP")
    exact = Exact(Geometry(target[0] if fit == "short" else target, fit, crop), filter)
    expected, got = exact(buffer.getvalue()).array, Fast(exact)(buffer.getvalue()).array
    assert np.abs(got.astype(int) - expected).max(initial=0) <= LEVELS[filter]


def test_more_than_max_pixels_is_refused(photo, encode):
    with pytest.raises(ContentError, match=r"200 pixels are more than max_pixels=199\Z"):
        Fast(Exact(max_pixels=199))(encode(photo(10, 20)))


def test_deep_gray_and_background_are_as_exact(encode):
    deep = encode(Image.fromarray(np.array([[0, 40000]], np.uint16)), "PNG")
    assert Fast()(deep).array[0].tolist() == [[0, 156]]
    clear = encode(Image.new("RGBA", (1, 1), (9, 9, 9, 0)), "PNG")
    assert Fast(Exact(background=(1, 2, 3)))(clear).array.ravel().tolist() == [1, 2, 3]


def test_engine_is_deterministic_and_picklable(photo, encode):
    engine = fast.make(make_recipe(size=20, crop=16, engine="fast"))
    data = encode(photo(30, 50))
    again = pickle.loads(pickle.dumps(engine))
    assert isinstance(engine, Engine)
    assert again == engine
    assert again.spec() == Exact(Geometry(20, crop=16)).spec()
    assert np.array_equal(again(data).array, engine(data).array)
