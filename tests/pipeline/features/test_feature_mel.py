import pickle

import numpy as np
import pytest
import torch
import torchaudio
from hypothesis import given, settings
from hypothesis import strategies as st

from precompile.errors import ContentError, RecipeError
from precompile.pipeline.features.mel import Mel, make
from precompile.pipeline.recipe import make_recipe
from precompile.pipeline.sample import Feature

RATE = 16_000


def noise(samples, seed=0):
    return np.random.default_rng(seed).uniform(-0.9, 0.9, (1, samples)).astype(np.float32)


def reference(waveform, rate=RATE, **options):
    options = {"n_fft": 400, "hop_length": 160, "n_mels": 80} | options
    return torchaudio.transforms.MelSpectrogram(rate, **options)(torch.from_numpy(waveform[0]))


def test_default_is_the_natural_logarithm_of_torchaudios_mel_as_float16():
    waveform = noise(8000)
    expected = reference(waveform).clamp(min=1e-10).log().numpy()
    array = Mel()(waveform, RATE)
    assert array.shape == (80, 51)
    assert array.dtype == np.float16
    assert array.flags.c_contiguous
    assert np.array_equal(array, expected.astype(np.float16))
    assert Mel().spec().to_json() == {
        "name": "spectrogram", "dtype": "float16", "shape": [80, None], "encoding": "raw", "unit": "ln power",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"n_fft": 1024, "win_length": 800, "hop_length": 256}, {"n_fft": 1024, "win_length": 800, "hop_length": 256}),
        ({"num_mels": 40, "f_min": 50.0, "f_max": 7600.0}, {"n_mels": 40, "f_min": 50.0, "f_max": 7600.0}),
        ({"mel_scale": "slaney", "norm": "slaney"}, {"mel_scale": "slaney", "norm": "slaney"}),
        ({"power": 1.0, "center": False}, {"power": 1.0, "center": False}),
    ],
)
def test_parameters_mean_what_they_mean_in_torchaudio(ours, theirs):
    waveform = noise(5000)
    array = Mel(log="none", dtype="float32", **ours)(waveform, RATE)
    assert np.array_equal(array, reference(waveform, **theirs).numpy())


@pytest.mark.parametrize(("power", "stype"), [(2.0, "power"), (1.0, "magnitude")])
@pytest.mark.parametrize("top_db", [None, 30.0])
def test_db_is_torchaudios_amplitude_to_db(power, stype, top_db):
    waveform = noise(5000)
    expected = torchaudio.transforms.AmplitudeToDB(stype, top_db)(reference(waveform, power=power)).numpy()
    array = Mel(log="db", power=power, top_db=top_db, dtype="float32")(waveform, RATE)
    assert array == pytest.approx(expected, abs=1e-5)


def test_linear_is_float32_power():
    feature = make(make_recipe(), {"log": "none"})
    assert feature.dtype == "float32"
    assert feature.spec().unit == "power"


@settings(max_examples=40, deadline=None)
@given(samples=st.integers(1, 2000), center=st.booleans(), scale=st.sampled_from([0.0, 1e-30, 1e-3, 1.0]))
def test_any_length_and_level_is_finite(samples, center, scale):
    array = Mel(center=center)(noise(samples) * np.float32(scale), RATE)
    padded = max(samples, 400)
    assert array.shape == (80, 1 + (padded if center else padded - 400) // 160)
    assert np.isfinite(array).all()


def test_short_clips_are_padded_with_zeros_to_one_window():
    short = noise(30)
    padded = np.pad(short, ((0, 0), (0, 370)))
    assert np.array_equal(Mel()(short, RATE), Mel()(padded, RATE))


def test_silence_is_the_floor():
    assert np.unique(Mel(log_floor=1e-5, dtype="float32")(np.zeros((1, 999), np.float32), RATE)) == pytest.approx(
        np.log(1e-5)
    )


def test_values_beyond_the_dtype_are_refused():
    with pytest.raises(ContentError, match="the spectrogram exceeds the range of float32") as error:
        Mel(log="none", dtype="float32")(np.full((1, 999), 1e25, np.float32), RATE)
    assert error.value.stage == "transform"


def test_rate_per_file_builds_one_transform_per_rate():
    waveform = noise(3000)
    assert np.array_equal(Mel(log="none", dtype="float32")(waveform, 8000), reference(waveform, 8000).numpy())
    with pytest.raises(ContentError, match=r"mel bands from 0 to 8000 Hz do not fit a rate of 8000 Hz"):
        Mel(f_max=8000.0)(waveform, 8000)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"bins": 3}, "unknown mel parameter 'bins'; choose from center, dtype, f_max, f_min, hop_length, log, "
                      "log_floor, mel_scale, n_fft, norm, num_mels, power, top_db, win_length"),
        ({"n_fft": 1}, "n_fft must be an integer of at least 2, got n_fft=1"),
        ({"n_fft": "400"}, "n_fft must be an integer of at least 2, got n_fft='400'"),
        ({"hop_length": 0}, "hop_length must be an integer of at least 1, got hop_length=0"),
        ({"hop_length": True}, "hop_length must be an integer of at least 1, got hop_length=True"),
        ({"win_length": 401}, "win_length must be an integer from 1 to 400, got win_length=401"),
        ({"num_mels": 0}, "num_mels must be an integer of at least 1, got num_mels=0"),
        ({"f_min": -1}, "f_min must be a number of at least 0, got f_min=-1"),
        ({"f_min": 100, "f_max": 100}, "f_max must be a number above 100, got f_max=100"),
        ({"f_min": 8000}, "f_min must be below 8000 Hz, half the sample rate, got f_min=8000"),
        ({"f_max": 8001}, "f_max must be at most 8000 Hz, half the sample rate, got f_max=8001"),
        ({"power": 0}, "power must be a number above 0, got power=0"),
        ({"log_floor": float("nan")}, "log_floor must be a number above 0, got log_floor=nan"),
        ({"log": "log2"}, "log must be one of ln, db, none, got log='log2'"),
        ({"mel_scale": "bark"}, "mel_scale must be one of htk, slaney, got mel_scale='bark'"),
        ({"norm": "l2"}, "norm must be one of None, slaney, got norm='l2'"),
        ({"center": "yes"}, "center must be one of True, False, got center='yes'"),
        ({"top_db": 80}, "top_db=80 needs log=db, got log=ln"),
        ({"log": "none", "dtype": "float16"}, "log=none needs dtype=float32: linear power does not fit float16"),
        ({"dtype": "int16"}, "dtype must be one of float16, float32, got dtype='int16'"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_named(parameters, message):
    with pytest.raises(RecipeError) as error:
        make(make_recipe(sample_rate=RATE), parameters)
    assert str(error.value) == message


def test_recipe_reaches_the_feature():
    recipe = make_recipe(sample_rate=RATE, dtype="float32")
    assert make(recipe, {"num_mels": 40}) == Mel(sample_rate=RATE, num_mels=40, dtype="float32")
    with pytest.raises(RecipeError, match="log=none needs dtype=float32"):
        make(make_recipe(dtype="float16"), {"log": "none"})
    with pytest.raises(RecipeError, match=r"mel needs one channel: .* got channels=keep"):
        make(make_recipe(channels="keep"), {})


def test_feature_is_deterministic_and_picklable():
    feature = Mel(num_mels=40)
    again = pickle.loads(pickle.dumps(feature))
    assert isinstance(feature, Feature)
    assert again == feature
    assert np.array_equal(again(noise(999), RATE), feature(noise(999), RATE))
