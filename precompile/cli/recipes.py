"""`precompile recipes [show NAME]`"""

from __future__ import annotations

from dataclasses import fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click

from precompile.pipeline import plugins
from precompile.pipeline.named_recipes import description, read_recipe, recipe_file, recipe_names
from precompile.pipeline.recipe import Recipe


@click.group("recipes", invoke_without_command=True)
@click.option("--keys", is_flag=True, help="list every recipe key with its meaning, choices and default")
@click.pass_context
def command(context: click.Context, keys: bool) -> None:
    """List the ready-made recipes for well-known datasets (`build --recipe NAME`)."""
    if keys:
        for key, field in Recipe.model_fields.items():
            _print_key(key, field.description or "", field.default, _choices(field.annotation))
            if key == "features":
                _print_features()
    elif context.invoked_subcommand is None:
        for name in recipe_names():
            click.echo(f"{name:<16} {description(name)}")


def _print_key(key: str, meaning: str, default: object, choices: str = "") -> None:
    value = str(default).lower() if default is None or isinstance(default, bool) else default
    click.echo(f"{key:<28} {meaning}{f' ({choices})' if choices else ''}  [{'empty' if value == '' else value}]")


def _choices(annotation: Any) -> str:
    """Those of a Literal, with or without None; empty for other types, whose values the meaning describes."""
    if get_origin(annotation) is Literal:
        return ", ".join(get_args(annotation))
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return _choices(kinds[0]) if len(kinds) == 1 else ""


def _print_features() -> None:
    for name in plugins.choices("features"):
        feature = plugins.load("features", name).make(Recipe(), {})
        for field in fields(feature):
            if field.metadata:  # the others follow from other keys
                _print_key(f"features.{name}.{field.name}", field.metadata["meaning"], getattr(feature, field.name))


@command.command("show")
@click.argument("name")
def show(name: str) -> None:
    """Print a recipe, to read or to start a recipe file from."""
    read_recipe(name)  # so that what is shown is a recipe
    click.echo(recipe_file(name).read_text(encoding="utf-8-sig"), nl=False)
