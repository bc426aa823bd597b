"""`recipes --keys` explains every key that a recipe may have, and `python -m precompile` is the command line."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from builds import REPOSITORY, cli

import precompile
from precompile.errors import RecipeError
from precompile.pipeline import plugins
from precompile.pipeline.features import make_features
from precompile.pipeline.recipe import make_recipe


@pytest.fixture(scope="module")
def keys() -> dict[str, tuple[str, str]]:
    """Meaning and default of each key that is listed."""
    rows = [re.fullmatch(r"(\S+) +(.*?)  \[(.*)\]", line) for line in cli("recipes", "--keys").out.splitlines()]
    assert all(rows), rows
    return {row[1]: (row[2], row[3]) for row in rows if row}


def test_every_key_has_a_meaning(keys: dict[str, tuple[str, str]]) -> None:
    assert [key for key, (meaning, _) in keys.items() if len(meaning) < 5] == []


@pytest.mark.parametrize("name", plugins.choices("features"))
def test_the_parameters_of_a_feature_are_those_it_takes(keys: dict[str, tuple[str, str]], name: str) -> None:
    with pytest.raises(RecipeError, match="choose from") as refused:
        make_features(make_recipe(features={name: {"nonsense": 1}}))
    taken = str(refused.value).partition("choose from ")[2].split(", ")
    prefix = f"features.{name}."
    assert sorted(key.removeprefix(prefix) for key in keys if key.startswith(prefix)) == taken


@pytest.mark.parametrize(
    ("key", "meaning", "default"),
    [
        ("store", r"\(lmdb, flat, tmpfs\)$", "lmdb"),
        ("parity", r"\(torchvision\)$", "none"),
        ("seed", "shuffled", "0"),
        ("path_prefix", "relative to SOURCE$", "empty"),
        ("features.mel.log", "ln: .*; db: .*; none: ", "ln"),
        ("features.mel.center", "^true: .*; false: ", "true"),
    ],
)
def test_choices_and_defaults(keys: dict[str, tuple[str, str]], key: str, meaning: str, default: str) -> None:
    assert re.search(meaning, keys[key][0])
    assert keys[key][1] == default


def test_the_package_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "precompile", "--version"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"precompile, version {precompile.__version__}\n"
