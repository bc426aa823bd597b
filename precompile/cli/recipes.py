"""`precompile recipes [show NAME]`"""

from __future__ import annotations

import click

from precompile.pipeline.named_recipes import description, recipe_file, recipe_names
from precompile.pipeline.recipe import Recipe


@click.group("recipes", invoke_without_command=True)
@click.option("--keys", is_flag=True, help="list every recipe key with its meaning and default")
@click.pass_context
def command(context: click.Context, keys: bool) -> None:
    """List the ready-made recipes for well-known datasets (`build --recipe NAME`)."""
    if keys:
        for key, field in Recipe.model_fields.items():
            click.echo(f"{key:<16} {field.description}  [{'none' if field.default is None else field.default}]")
    elif context.invoked_subcommand is None:
        for name in recipe_names():
            click.echo(f"{name:<16} {description(name)}")


@command.command("show")
@click.argument("name")
def show(name: str) -> None:
    """Print a recipe, to read or to start a recipe file from."""
    click.echo(recipe_file(name).read_text(encoding="utf-8"), nl=False)
