"""Features: a waveform -> one array field. One module per front end, with `make(recipe, parameters) -> Feature`."""

from __future__ import annotations

from precompile.errors import RecipeError
from precompile.pipeline import plugins
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import Feature

DEFAULT = "mel"


def make_features(recipe: Recipe) -> tuple[Feature, ...]:
    """The front ends of a recipe, in its order; `recipe.dtype` goes to those that have it.

    Raises RecipeError for an unknown front end or parameter, and for a dtype that none of them has.
    """
    parameters = recipe.features if recipe.features is not None else {DEFAULT: {}}
    if not parameters:
        raise RecipeError(f"features must name at least one of {', '.join(plugins.choices('features'))}, got none")
    features = tuple(plugins.load("features", name).make(recipe, values) for name, values in parameters.items())
    if recipe.dtype is not None and all(feature.spec().dtype != recipe.dtype for feature in features):
        have = ", ".join(f"{name} ({feature.spec().dtype})" for name, feature in zip(parameters, features))
        raise RecipeError(f"dtype={recipe.dtype} fits none of the features {have}")
    return features
