"""`precompile diff OUT`"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from precompile.cli.main import print_json
from precompile.errors import DatasetNotFoundError
from precompile.format.generation import list_generations, read_current
from precompile.pipeline.class_changes import changed_classes, describe_classes
from precompile.pipeline.diff import diff
from precompile.pipeline.earlier import open_earlier
from precompile.pipeline.quarantine import printable

_SHOWN = 20


@click.command("diff")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--from", "old", type=int, metavar="N", help="the older generation  [the one before]")
@click.option("--to", "new", type=int, metavar="N", help="the newer generation  [the current one]")
@click.option("--json", "as_json", is_flag=True, help="print as JSON, with all keys")
def command(out: Path, old: int | None, new: int | None, as_json: bool) -> None:
    """Say which samples were added, removed, renamed, changed or re-labelled from one generation of OUT to another."""
    new = read_current(out).generation if new is None else new
    if old is None:
        kept = list_generations(out)
        older = [number for number in kept if number < new]
        if not older:
            have = ", ".join(map(str, kept))
            raise DatasetNotFoundError(f"{out}: no generation before {new} is kept, only {have}; nothing to compare")
        old = older[-1]
    before, after = open_earlier(out, old, check=False), open_earlier(out, new, check=False)
    found = asdict(diff(before, after))
    maps = (before.manifest.classes, after.manifest.classes)
    if as_json:
        classes = dict(zip(("added", "removed", "renumbered"), changed_classes(*maps)))
        print_json({"from": old, "to": new, **found, "classes": classes})
        return
    counts = ", ".join(f"{len(keys)} {what}" for what, keys in found.items())
    click.echo(f"{out}: generation {old} to {new}: {counts}")
    if line := describe_classes(*maps):
        click.echo(f"  {line}")
    for what, keys in found.items():
        for key in keys[:_SHOWN]:
            text = printable(key) if isinstance(key, str) else " -> ".join(map(printable, key))
            click.echo(f"  {what:<10} {text}")
        if len(keys) > _SHOWN:
            click.echo(f"  {what:<10} … and {len(keys) - _SHOWN} more (--json lists all)")
