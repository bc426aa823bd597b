import hashlib
import io
import pickle
import struct

import numpy as np
import pytest
import soundfile
import torch
import torchaudio
from hypothesis import given, settings
from hypothesis import strategies as st

from precompile.errors import ContentError, RecipeError
from precompile.pipeline.engines.audio import Audio, make
from precompile.pipeline.recipe import make_recipe
from precompile.pipeline.sample import Engine


def encode(samples, rate=16_000, format="WAV", subtype=None):
    """samples: (frames,) or (frames, channels)"""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=format, subtype=subtype)
    return buffer.getvalue()


def noise(frames, channels=1, seed=0):
    return np.random.default_rng(seed).uniform(-0.9, 0.9, (frames, channels)).astype(np.float32)


def test_corpus_samples_equal_the_reference(good_audio, corpus_file):
    reference = good_audio["soundfile"]
    decoded = Audio(channels="keep")(corpus_file(good_audio))
    assert decoded.array.shape == (reference["channels"], reference["frames_read"])
    assert decoded.columns == {
        "duration_seconds": reference["frames_read"] / reference["rate"],
        "sample_rate": reference["rate"],
        "num_samples": reference["frames_read"],
    }
    if not good_audio.get("lossy"):
        assert hashlib.sha256(decoded.array.T.tobytes()).hexdigest() == reference["float32_sha256"]
    else:
        read, _ = soundfile.read(io.BytesIO(corpus_file(good_audio)), dtype="float32", always_2d=True)
        assert np.array_equal(decoded.array, read.T)


def test_corpus_resampled_equals_torchaudio(good_audio, corpus_file):
    data = corpus_file(good_audio)
    read, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    mono = torch.from_numpy(read.T.copy()).mean(dim=0, keepdim=True)
    expected = torchaudio.functional.resample(mono, rate, 16_000).numpy()
    assert Audio(16_000)(data).array == pytest.approx(expected, abs=1e-6)


def test_corpus_failures_have_a_reason(bad_audio, corpus_file):
    with pytest.raises(ContentError) as error:
        Audio()(corpus_file(bad_audio))
    assert str(error.value).startswith(("libsndfile: ", "no audio frames"))
    assert "0x" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("format", ["WAV", "FLAC", "OGG", "MP3", "AIFF"])
def test_long_files_equal_one_read(format):
    data = encode(noise(200_000, 2), format=format)
    read, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    assert np.array_equal(Audio(channels="keep")(data).array, read.T)


def test_frame_count_of_a_header_is_not_believed():
    data = bytearray(encode(noise(1000), format="FLAC"))
    data[21:26] = bytes([data[21] & 0xF0]) + (6_000_000).to_bytes(4)  # STREAMINFO: total samples, 36 bits
    assert soundfile.info(io.BytesIO(data)).frames == 6_000_000
    assert Audio()(bytes(data)).columns["num_samples"] == 1000


def test_flac_that_promises_samples_and_has_none():
    data = bytearray(encode(noise(1000), format="FLAC"))
    data[21:26] = bytes([data[21] & 0xF0]) + (6_000_000).to_bytes(4)
    with pytest.raises(ContentError, match=r"no audio frames|libsndfile: "):
        Audio()(bytes(data[:86]))


@pytest.mark.parametrize(
    ("channels", "expected"),
    [("mix", [[0.25, 0.0]]), ("left", [[0.5, 0.5]]), ("right", [[0.0, -0.5]]), ("keep", [[0.5, 0.5], [0.0, -0.5]])],
)
def test_channels(channels, expected):
    array = Audio(channels=channels)(encode(np.array([[0.5, 0.0], [0.5, -0.5]]), subtype="FLOAT")).array
    assert array.tolist() == expected
    assert array.dtype == np.float32
    assert array.flags.c_contiguous


@pytest.mark.parametrize("channels", ["mix", "left", "right", "keep"])
def test_mono_is_the_same_for_every_rule(channels):
    samples = noise(100)
    assert np.array_equal(Audio(channels=channels)(encode(samples, subtype="FLOAT")).array, samples.T)


@settings(max_examples=25, deadline=None)
@given(
    old=st.sampled_from([8_000, 11_025, 16_000, 22_050, 12_345, 44_100, 48_000]),
    new=st.sampled_from([8_000, 16_000, 22_050, 44_100]),
    frames=st.integers(1, 3000),
)
def test_resampling_equals_torchaudio(old, new, frames):
    samples = noise(frames, seed=frames)
    decoded = Audio(new)(encode(samples, old, subtype="FLOAT"))
    expected = torchaudio.functional.resample(torch.from_numpy(samples.T.copy()), old, new).numpy()
    assert decoded.array == pytest.approx(expected, abs=1e-6)
    assert decoded.columns == {
        "duration_seconds": frames / old,
        "sample_rate": new,
        "num_samples": decoded.array.shape[1],
    }


def test_unrelated_rates_are_refused_before_memory_is_taken():
    message = r"cannot resample from 44101 Hz to 16000 Hz: the kernel is too large\Z"
    with pytest.raises(ContentError, match=message) as error:
        Audio(16_000)(encode(noise(10), 44_101))
    assert error.value.stage == "transform"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite_are_refused(value):
    with pytest.raises(ContentError, match=r"samples are not finite \(NaN or infinity\)"):
        Audio()(encode(np.array([0.0, value]), subtype="FLOAT"))


MP4 = struct.pack(">I4s4sI", 16, b"ftyp", b"M4A ", 0) + bytes(64)
MATROSKA = b"\x1aE\xdf\xa3" + bytes(60)
ADTS = b"\xff\xf1\x50\x80" + bytes(60)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty file (0 bytes)"),
        (encode(np.zeros(0)), "no audio frames"),
        (b"text that is no audio", "libsndfile: Format not recognised."),
        (MP4, "MP4 (m4a, AAC): libsndfile cannot read it; convert it to WAV, FLAC, MP3 or OGG"),
        (MATROSKA, "Matroska (webm, mka): libsndfile cannot read it; convert it to WAV, FLAC, MP3 or OGG"),
        (ADTS, "ADTS (aac): libsndfile cannot read it; convert it to WAV, FLAC, MP3 or OGG"),
    ],
)
def test_bad_input_is_named(data, message):
    with pytest.raises(ContentError) as error:
        Audio()(data)
    assert str(error.value) == message


def test_raw_pcm_is_not_guessed():
    with pytest.raises(ContentError, match="libsndfile: "):
        Audio()(np.linspace(0.1, 0.9, 4000, dtype="<f4").tobytes())


def test_truncated_wav_gives_what_is_there():
    samples = noise(1000)
    data = encode(samples, subtype="FLOAT")
    array = Audio()(data[:-400]).array
    assert array.shape == (1, 900)
    assert np.array_equal(array, samples.T[:, :900])


@pytest.mark.parametrize("channels", ["mix", "keep"])
def test_spec_fits_what_comes(channels):
    engine = Audio(channels=channels)
    array = engine(encode(noise(10, 3))).array
    assert engine.spec().complete(array.shape) == array.shape
    assert engine.spec().shape == ((None if channels == "keep" else 1), None)


def test_engine_is_deterministic_and_picklable():
    engine = make(make_recipe(sample_rate=8000, channels="left"))
    assert engine == Audio(8000, "left")
    again = pickle.loads(pickle.dumps(engine))
    data = encode(noise(1000, 2))
    assert isinstance(engine, Engine)
    assert again == engine
    assert np.array_equal(again(data).array, engine(data).array)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sample_rate": 0}, "sample_rate must be at least 1 Hz, got sample_rate=0"),
        ({"channels": "both"}, "channels must be one of mix, left, right, keep, got channels='both'"),
    ],
)
def test_wrong_options_are_named(arguments, message):
    with pytest.raises(RecipeError) as error:
        Audio(**arguments)
    assert str(error.value) == message
