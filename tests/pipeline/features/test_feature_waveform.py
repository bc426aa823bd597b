import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precompile.errors import RecipeError
from precompile.pipeline.features.waveform import Waveform, make
from precompile.pipeline.recipe import make_recipe
from precompile.pipeline.sample import Feature


def test_float32_is_kept_as_it_is():
    waveform = np.array([[0.5, -1.75, 1e-30]], np.float32)
    array = Waveform()(waveform, 8000)
    assert array.dtype == np.float32
    assert np.array_equal(array, waveform)


@given(st.lists(st.integers(-32768, 32767), min_size=1))
def test_int16_gives_back_16_bit_files(values):
    waveform = np.array([values], np.float32) / 32768
    array = Waveform("int16")(waveform, 8000)
    assert array.dtype == np.int16
    assert array.tolist() == [values]


def test_int16_is_limited_to_its_range():
    waveform = np.array([[1.0, 1.5, -1.0, -9.0, 0.4 / 32768, 0.6 / 32768]], np.float32)
    assert Waveform("int16")(waveform, 8000).tolist() == [[32767, 32767, -32768, -32768, 0, 1]]


def test_result_is_contiguous():
    array = Waveform(num_channels=None)(np.zeros((5, 2), np.float32).T, 8000)
    assert array.shape == (2, 5)
    assert array.flags.c_contiguous


def test_recipe_reaches_the_feature():
    assert make(make_recipe(), {}) == Waveform("float32", 1)
    assert make(make_recipe(dtype="int16"), {}) == Waveform("int16", 1)
    assert make(make_recipe(dtype="float16"), {}) == Waveform("float32", 1)
    assert make(make_recipe(), {"dtype": "int16"}).spec().dtype == "int16"
    assert make(make_recipe(channels="keep"), {}).spec().shape == (None, None)
    assert make(make_recipe(), {}).spec().unit == "full scale [-1, 1]"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"bits": 8}, "unknown waveform parameter 'bits'; choose from dtype"),
        ({"dtype": "float16"}, "dtype must be one of float32, int16, got dtype='float16'"),
    ],
)
def test_wrong_parameters_are_named(parameters, message):
    with pytest.raises(RecipeError) as error:
        make(make_recipe(), parameters)
    assert str(error.value) == message


def test_feature_is_picklable():
    feature = Waveform("int16")
    assert isinstance(feature, Feature)
    assert pickle.loads(pickle.dumps(feature)) == feature
