"""Bad input: each is refused with a reason."""

import io
import subprocess
import sys
import warnings

import pytest
from PIL import Image

from precompile.errors import ContentError
from precompile.pipeline.engines.exact import Exact
from precompile.pipeline.geometry import Geometry

pytestmark = pytest.mark.filterwarnings(r"ignore:::PIL\.")  # pytest undoes the engine's own filter


def hwc(data, engine=None):
    return (engine or Exact())(data).array.transpose(1, 2, 0)


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
