import pytest

from precompile.errors import RecipeError
from precompile.pipeline.features import make_features
from precompile.pipeline.features.mel import Mel
from precompile.pipeline.features.waveform import Waveform
from precompile.pipeline.recipe import make_recipe


def test_default_is_mel():
    assert make_features(make_recipe(sample_rate=16_000)) == (Mel(sample_rate=16_000),)


def test_features_keep_the_order_and_parameters_of_the_recipe():
    recipe = make_recipe(features={"waveform": {"dtype": "int16"}, "mel": {"num_mels": 40}})
    assert make_features(recipe) == (Waveform("int16"), Mel(num_mels=40))
    assert make_features(make_recipe(features="mel,waveform")) == (Mel(), Waveform())


def test_dtype_goes_to_the_features_that_have_it():
    assert make_features(make_recipe(features="mel,waveform", dtype="float32")) == (Mel(dtype="float32"), Waveform())
    assert make_features(make_recipe(features="mel,waveform", dtype="int16")) == (Mel(), Waveform("int16"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dtype": "int16"}, r"dtype=int16 fits none of the features mel \(float16\)\Z"),
        ({"features": "fbank"}, r"no feature named 'fbank'; choose from "),
        ({"features": ""}, r"features must name at least one of .*mel.*waveform, got none\Z"),
        ({"features": {"mel": {"bins": 1}}}, "unknown mel parameter 'bins'"),
    ],
)
def test_wrong_recipes_are_named(keys, message):
    with pytest.raises(RecipeError, match=message):
        make_features(make_recipe(**keys))
