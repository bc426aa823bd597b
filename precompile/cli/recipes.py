"""`precompile recipes [show NAME]`"""

from __future__ import annotations

from dataclasses import fields

import click

from precompile.pipeline import plugins
from precompile.pipeline.named_recipes import description, read_recipe, recipe_file, recipe_names
from precompile.pipeline.recipe import Recipe


@click.group("recipes", invoke_without_command=True)
@click.option("--keys", is_flag=True, help="list every recipe key with its meaning and default")
@click.pass_context
def command(context: click.Context, keys: bool) -> None:
    """List the ready-made recipes for well-known datasets (`build --recipe NAME`)."""
    if keys:
        for key, field in Recipe.model_fields.items():
            _print_key(key, field.description or "", field.default)
            if key == "features":
                _print_features()
    elif context.invoked_subcommand is None:
        for name in recipe_names():
            click.echo(f"{name:<16} {description(name)}")


def _print_key(key: str, meaning: str, default: object) -> None:
    click.echo(f"{key:<28} {meaning}  [{'none' if default is None else default}]")


def _print_features() -> None:
    for name in plugins.choices("features"):
        feature = plugins.load("features", name).make(Recipe(), {})
        for field in fields(feature):
            if field.name not in ("sample_rate", "num_channels"):  # which other keys decide
                _print_key(f"features.{name}.{field.name}", "", getattr(feature, field.name))


@command.command("show")
@click.argument("name")
def show(name: str) -> None:
    """Print a recipe, to read or to start a recipe file from."""
    read_recipe(name)  # so that what is shown is a recipe
    click.echo(recipe_file(name).read_text(encoding="utf-8-sig"), nl=False)
