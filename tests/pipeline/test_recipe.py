from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from precompile.errors import RecipeError
from precompile.pipeline.named_recipes import read_recipe, recipe_names
from precompile.pipeline.recipe import Recipe, make_recipe, merge, read_toml

OTHER_VALUES: dict[str, Any] = {
    "source": "table", "splits": "none", "classes": ("b", "a"), "media": "image", "path_column": "path",
    "label_column": "label", "split_column": "split", "path_prefix": "images", "path_suffix": ".jpg",
    "table": "meta.csv", "path_format": "{id}.jpg",
    "missing": "quarantine", "store": "flat", "encoding": "bmp", "layout": "HWC", "order": "source", "seed": 1,
    "shard_size": 1, "engine": "fast", "size": 8, "fit": "exact", "crop": 8, "max_side": 8, "filter": "box",
    "parity": "torchvision", "background": (1, 2, 3), "max_pixels": 8, "features": {"mel": {}},
    "sample_rate": 8000, "channels": "left", "dtype": "float32",
}  # fmt: skip
"""A value other than the default for every key."""


def test_the_table_of_values_has_every_key() -> None:
    assert set(OTHER_VALUES) == set(Recipe.model_fields)


@pytest.mark.parametrize("key", sorted(OTHER_VALUES))
def test_digest_depends_on_every_key(key: str) -> None:
    base = {"size": 16} if key == "fit" else {}
    assert make_recipe(**base, **{key: OTHER_VALUES[key]}).digest != make_recipe(**base).digest


def test_digest_is_the_same_for_the_same_values() -> None:
    digest = make_recipe(size="224x320", fit="pad", splits="a,b", features="mel").digest
    assert re.fullmatch("[0-9a-f]{32}", digest)
    assert make_recipe(features={"mel": {}}, splits=["a", "b"], fit="pad", size=[224, 320]).digest == digest


def test_giving_a_default_changes_no_digest() -> None:
    assert make_recipe(store="lmdb", seed=0).digest == make_recipe().digest


def test_unknown_key_names_the_choices() -> None:
    with pytest.raises(RecipeError, match=r"^unknown recipe key 'sizes'; choose from .*\bsize\b") as caught:
        make_recipe(sizes=8)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"store": "zip"}, r"^store: .*'lmdb', 'flat' or 'tmpfs'.*got store='zip'"),
        ({"encoding": "png"}, r"^encoding: .*'raw' or 'bmp'.*got encoding='png'"),
        ({"fit": "long", "size": 8}, r"^fit: .*'short', 'exact', 'pad' or 'stretch'.*got fit='long'"),
        ({"filter": "nearest"}, r"^filter: .*'bilinear', 'bicubic', 'lanczos' or 'box'.*got filter='nearest'"),
        ({"order": "random"}, r"^order: .*'shuffled' or 'source'.*got order='random'"),
        ({"dtype": "float64"}, r"^dtype: .*'float16'.*got dtype='float64'"),
        ({"size": 0}, r"^size: .*greater than or equal to 1, got size=0"),
        ({"size": "big"}, r"^size: must be N or HxW, got size='big'"),
        ({"crop": -1}, r"^crop: .*greater than or equal to 1, got crop=-1"),
        ({"sample_rate": "fast"}, r"^sample_rate: .*integer.*got sample_rate='fast'"),
        ({"shard_size": 0}, r"^shard_size: .*got shard_size=0"),
        ({"seed": -1}, r"^seed: .*got seed=-1"),
        ({"engine": "os.path"}, r"^engine: .*got engine='os.path'"),
        ({"classes": "a,b,a"}, r"^classes must be unique, got 'a' twice"),
        ({"fit": "pad"}, r"^fit=pad needs size"),
        ({"size": "4x8"}, r"^fit=short needs size=N .* got size=4x8; choose fit=exact, pad or stretch"),
        ({"encoding": "bmp", "layout": "HWC"}, r"^layout=HWC needs encoding=raw"),
        ({"size": 16, "max_side": 8}, r"^max_side must be at least size, got max_side=8, size=16"),
    ],
)
def test_wrong_value_gives_one_line_with_key_and_value(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        make_recipe(**keys)
    assert "\n" not in str(caught.value)


def test_short_forms() -> None:
    recipe = make_recipe(size="224X320", fit="stretch", features="mel, waveform", classes="b,a", background="1,2,3")
    assert recipe.size == (224, 320)
    assert recipe.features == {"mel": {}, "waveform": {}}
    assert recipe.classes == ("b", "a")
    assert recipe.background == (1, 2, 3)
    assert make_recipe(size="256").size == 256


def test_toml(tmp_path: Path) -> None:
    file = tmp_path / "birds.toml"
    file.write_text('description = "birds"\nsample_rate = 16000\n[features.mel]\nnum_mels = 64\n')
    assert read_recipe(str(file)) == {"sample_rate": 16000, "features": {"mel": {"num_mels": 64}}}


@pytest.mark.parametrize("data", [b"size = ", b"\xff\xfe", b"size = 1\nsize = 2"])
def test_what_is_not_toml_is_named(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(data)
    with pytest.raises(RecipeError, match=r"bad\.toml: not TOML"):
        read_toml(file)


def test_missing_recipe_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"none\.toml: no such recipe file"):
        read_recipe(str(tmp_path / "none.toml"))


def test_unknown_recipe_name_lists_the_choices() -> None:
    with pytest.raises(RecipeError, match=f"^no recipe named 'imagenot'; choose from .*{recipe_names()[0]}"):
        read_recipe("imagenot")


@pytest.mark.parametrize("name", recipe_names())
def test_ready_made_recipes_are_valid(name: str) -> None:
    make_recipe(**read_recipe(name))


def test_merge_lets_the_second_win_and_joins_tables() -> None:
    base = {"size": 8, "features": {"mel": {"num_mels": 80, "n_fft": 400}}}
    over = {"size": 16, "features": {"mel": {"num_mels": 64}, "waveform": {}}}
    assert merge(base, over) == {"size": 16, "features": {"mel": {"num_mels": 64, "n_fft": 400}, "waveform": {}}}
    assert base["features"] == {"mel": {"num_mels": 80, "n_fft": 400}}


def test_merge_replaces_what_is_not_a_table() -> None:
    assert merge({"features": "mel"}, {"features": {"waveform": {}}}) == {"features": {"waveform": {}}}
