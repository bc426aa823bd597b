"""`precompile prune OUT`"""

from __future__ import annotations

from pathlib import Path

import click

from precompile.cli.main import print_json
from precompile.errors import RecipeError
from precompile.format.generation import generation_dir, list_generations, read_current
from precompile.format.lease import is_in_use
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.lock import locked, refuse_if_busy
from precompile.pipeline.prune import prune
from precompile.pipeline.storage import storage_errors


@click.command("prune")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--keep", type=int, default=2, show_default=True, help="generations to keep, the current one included")
@click.option("--json", "as_json", is_flag=True, help="print as JSON")
def command(out: Path, keep: int, as_json: bool) -> None:
    """Remove all but the newest generations of OUT, and the shards that only they used.

    A generation that a training job has open stays. Exits 75 while a build is at work.
    """
    if keep < 1:
        raise RecipeError(f"keep must be at least 1, got keep={keep}")
    dirs = BuildDirs(out.absolute())
    refuse_if_busy(dirs)
    read_current(out)
    with locked(dirs), storage_errors(f"cannot write {out}"):
        before = _bytes(dirs)
        removed = prune(dirs, keep=keep)
        freed = before - _bytes(dirs)
    kept = list_generations(out)
    if as_json:
        print_json({"removed": removed, "kept": kept, "freed_bytes": freed})
        return
    names = ", ".join(map(str, removed)) or "none"
    click.echo(f"{out}: removed generations: {names}; kept: {', '.join(map(str, kept))}; {freed / 1e6:,.1f} MB freed")
    for generation in kept[:-keep]:
        if is_in_use(generation_dir(out, generation)):
            click.echo(f"{out}: generation {generation} stays, somebody has it open")


def _bytes(dirs: BuildDirs) -> int:
    return sum(path.lstat().st_size for part in (dirs.shards, dirs.generations) for path in part.rglob("*"))
