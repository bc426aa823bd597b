import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

CORPORA = Path(__file__).resolve().parents[3].parent / "shared" / "corpora"


PARAMETERS = {
    "good_image": ("images", lambda row: row["result"]["ok"]),
    "bad_image": ("images", lambda row: not row["result"]["ok"]),
    "good_audio": ("audio", lambda row: row["soundfile"]["ok"] and row["soundfile"]["frames_read"]),
    "bad_audio": ("audio", lambda row: not (row["soundfile"]["ok"] and row["soundfile"]["frames_read"])),
}
"""Arguments that run a test once per file of the corpora: rows of the reference tables."""


def pytest_generate_tests(metafunc):
    for name in set(PARAMETERS) & set(metafunc.fixturenames):
        kind, is_wanted = PARAMETERS[name]
        table = CORPORA / f"reference_{kind}.jsonl"
        if table.exists():
            rows = [row for row in map(json.loads, table.read_text().splitlines()) if is_wanted(row)]
        else:
            rows = [pytest.param(None, marks=pytest.mark.skip(reason=f"{table} is missing"))]
        metafunc.parametrize(name, rows, ids=lambda row: row["path"] if row else "none")


@pytest.fixture
def corpus_file():
    return lambda row: (CORPORA / row["path"]).read_bytes()


def make_photo(height, width, seed=0):
    """Smooth structure at several scales with a little noise: like a photograph, RGB uint8."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width, 3))
    for cells in (3, 12, 48):
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        total += np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), float)
    return np.clip(total / 3 + rng.normal(0, 4, total.shape), 0, 255).astype(np.uint8)


@pytest.fixture
def photo():
    """photo(height, width, seed=0) -> PIL image."""
    return lambda height, width, seed=0: Image.fromarray(make_photo(height, width, seed))


@pytest.fixture
def encode():
    """encode(image, format, **options) -> the bytes of a file."""

    def encode(image, format="JPEG", **options):
        buffer = io.BytesIO()
        image.save(buffer, format, **options)
        return buffer.getvalue()

    return encode


@pytest.fixture
def with_orientation(encode):
    """A JPEG of the image with an EXIF orientation."""

    def with_orientation(image, value):
        exif = Image.Exif()
        exif[0x0112] = value
        return encode(image, "JPEG", quality=90, exif=exif)

    return with_orientation
