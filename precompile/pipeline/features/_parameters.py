"""A front end's parameters: their meaning, and checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from precompile.errors import RecipeError


def parameter(default: Any, meaning: str) -> Any:
    """A dataclass field that a recipe may set; `recipes --keys` prints its meaning, which has unit and choices."""
    return field(default=default, metadata={"meaning": meaning})


def check_names(feature: str, parameters: Mapping[str, Any], choices: Collection[str]) -> None:
    """Raises RecipeError for a parameter that the front end does not have."""
    for name in parameters:
        if name not in choices:
            raise RecipeError(f"unknown {feature} parameter {name!r}; choose from {', '.join(sorted(choices))}")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise RecipeError(f"{name} must be one of {', '.join(map(str, choices))}, got {name}={value!r}")


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> None:
    """An int in [low, high]; high None is no limit."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or not low <= value <= (value if high is None else high):
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise RecipeError(f"{name} must be an integer {bounds}, got {name}={value!r}")


def check_number(name: str, value: Any, low: float, *, above: bool = False) -> None:
    """A finite number of at least `low`, or above it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
    if not is_number or value < low or (above and value == low):
        raise RecipeError(
            f"{name} must be a number {'above' if above else 'of at least'} {low:g}, got {name}={value!r}"
        )
