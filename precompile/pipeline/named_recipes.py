"""Ready-made recipes: one .toml per well-known dataset, shipped with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from precompile.errors import RecipeError
from precompile.pipeline.recipe import read_toml

_PACKAGE = Path(__file__).resolve().parents[1]


def recipes_dir() -> Path:
    """`precompile/datasets` in an installed package, `datasets` beside it in a source tree."""
    installed = _PACKAGE / "datasets"
    return installed if installed.is_dir() else _PACKAGE.parent / "datasets"


def recipe_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in recipes_dir().glob("*.toml")))


def recipe_file(name: str) -> Path:
    """The file of a named recipe, or `name` itself when it is a path to a .toml file. Raises RecipeError."""
    if name.endswith(".toml"):
        return Path(name)
    if name not in recipe_names():
        raise RecipeError(f"no recipe named {name!r}; choose from {', '.join(recipe_names())}, or give a .toml file")
    return recipes_dir() / f"{name}.toml"


def read_recipe(name: str) -> dict[str, Any]:
    """The keys of a named recipe or a file, without its description."""
    keys = read_toml(recipe_file(name))
    keys.pop("description", None)
    return keys


def description(name: str) -> str:
    return str(read_toml(recipe_file(name)).get("description", ""))
