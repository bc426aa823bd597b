"""`precompile cache add|ls|drop`"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from precompile.cli.main import print_json
from precompile.errors import RecipeError
from precompile.loading.caching.directory import CacheDirectory
from precompile.loading.caching.dropping import Dropped, drop, sweep
from precompile.loading.caching.entries import Entry, list_entries
from precompile.loading.caching.listing import Listed, survey
from precompile.loading.caching.options import Cache, default_directory
from precompile.loading.caching.room import room, size_text
from precompile.loading.caching.staging import OnProgress, add, no_ram_disk
from precompile.pipeline.quarantine import printable

_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
          "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}  # fmt: skip
_FEWEST_PLAIN_BYTES = 1 << 20
"""A smaller number without a unit, such as 8, lacks one."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

_directory = click.option("--directory", type=click.Path(), help=f"the cache  [{default_directory()}]")
_json = click.option("--json", "as_json", is_flag=True, help="print as JSON")


@click.group("cache")
def command() -> None:
    """Keep compiled datasets on a RAM disk, once per host, for all processes.

    Training uses what is there with CompiledDataset(OUT, cache=True), and stages what is not.
    """


@command.command("add")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--split", help="only this split  [all]")
@click.option("--fields", metavar="A,B", help="only these fields; columns are always included  [all]")
@click.option("--generation", type=int, metavar="N", help="an older generation  [the current one]")
@_directory
@click.option("--reserve", metavar="BYTES", help="memory that stays free, such as 8GB  [an eighth of all]")
@_json
@click.option("--quiet", is_flag=True, help="no progress")
def add_command(
    out: Path, split: str | None, fields: str | None, generation: int | None, directory: str | None,
    reserve: str | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Stage the compiled dataset OUT. Older generations of it that nobody has open are dropped."""
    cache = _cache(directory, reserve)
    names = None if fields is None else tuple(name.strip() for name in fields.split(",") if name.strip())
    began = time.monotonic()
    with _progress(quiet) as on_progress:
        try:
            entry, is_new = add(out, cache, generation=generation, fields=names, split=split, on_progress=on_progress)
        except ValueError as error:
            raise RecipeError(str(error)) from None
    seconds = time.monotonic() - began
    assert entry.facts is not None
    if as_json:
        print_json({**_facts(entry), "path": str(entry.path), "staged": is_new, "seconds": seconds})
        return
    size = f"{size_text(entry.facts.num_bytes)}"
    done = f"staged {size} in {seconds:,.1f} s" if is_new else f"{size} were there already"
    click.echo(printable(f"{out}: {done}: {entry.path}"))


@command.command("ls")
@_directory
@_json
def ls_command(directory: str | None, as_json: bool) -> None:
    """List what is staged, who uses it, and how much room there is."""
    path = _cache(directory).path
    entries = survey(CacheDirectory(path, make=False))
    found = room(path)
    if as_json:
        facts = {"free_bytes": found.free_bytes, "memory_bytes": found.memory_bytes,
                 "reserve_bytes": found.reserve_bytes, "have_bytes": found.have_bytes}  # fmt: skip
        print_json({"directory": str(path), "entries": [_listed(entry) for entry in entries], "room": facts})
        return
    for entry in entries:
        click.echo(printable(_line(entry)))
    if not entries:
        click.echo(printable(f"{path}: nothing is staged"))
    click.echo(f"room: {size_text(found.have_bytes)} ({found})")
    if (warning := no_ram_disk(path)) is not None:
        click.echo(printable(warning))


@command.command("drop")
@click.argument("names", metavar="[NAME|OUT …]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="all entries, and what dead processes left half-made")
@click.option("--older-than", metavar="AGE", help="only what was not opened for so long: 2d, 12h, 30m")
@click.option("--force", is_flag=True, help="also entries in use; memory is free once they are closed")
@_directory
@_json
def drop_command(
    names: tuple[str, ...], everything: bool, older_than: str | None, force: bool, directory: str | None, as_json: bool
) -> None:
    """Drop entries, by NAME or by the dataset that they are copies of.

    What is in use stays. Exits 1 when that is so for an entry that was named.
    """
    if not names and not everything and older_than is None:
        raise RecipeError("drop needs NAME or OUT (see `precompile cache ls`), --older-than AGE, or --all")
    max_age_seconds = None if older_than is None else _seconds(older_than)
    place = CacheDirectory(_cache(directory).path, make=False)
    entries = list_entries(place)
    chosen = entries if everything or not names else _named(names, entries, place.path) if entries else []
    if max_age_seconds is not None:
        chosen = [entry for entry in chosen if time.time() - entry.used_at >= max_age_seconds]
    swept = sweep(place) if everything else 0
    dropped = [drop(place, entry.name, force=force) for entry in chosen]
    if as_json:
        print_json({"dropped": [asdict(item) for item in dropped], "swept": swept})
    else:
        _print_dropped(dropped, swept, place.path, "nothing of that age" if entries else "nothing is staged")
    if names and any(item.stays for item in dropped):
        sys.exit(1)


def _print_dropped(dropped: list[Dropped], swept: int, path: Path, otherwise: str) -> None:
    for item in dropped:
        click.echo(printable(_outcome(item)))
    if swept:
        click.echo(f"{swept} half-made removed")
    if not dropped and not swept:
        click.echo(printable(f"{path}: {otherwise}"))


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[OnProgress | None]:
    if quiet or not sys.stderr.isatty():
        yield None
        return
    with tqdm(unit="B", unit_scale=True, desc="staging", leave=False) as bar:

        def show(done_bytes: int, total_bytes: int) -> None:
            bar.total = total_bytes
            bar.update(done_bytes - bar.n)

        yield show


def _cache(directory: str | None, reserve: str | None = None) -> Cache:
    reserve_bytes = None if reserve is None else _bytes(reserve)
    try:
        return Cache(directory=directory, reserve_bytes=reserve_bytes)
    except ValueError as error:
        raise RecipeError(f"--directory: {error}") from None


def _named(names: tuple[str, ...], entries: list[Entry], path: Path) -> list[Entry]:
    chosen = []
    for name in names:
        root = os.path.realpath(name)
        found = [entry for entry in entries if entry.name == name or (entry.facts and entry.facts.root == root)]
        if not found:
            there = ", ".join(entry.name for entry in entries)
            raise RecipeError(f"{path}: nothing staged is called, or is a copy of, {name!r}; choose from {there}")
        chosen += [entry for entry in found if entry not in chosen]
    return chosen


def _facts(entry: Entry) -> dict[str, Any]:
    return {"name": entry.name, **(asdict(entry.facts) if entry.facts else {})}


def _listed(entry: Listed) -> dict[str, Any]:
    return asdict(entry)


def _line(entry: Listed) -> str:
    size = f"{size_text(entry.num_bytes)}"
    if entry.facts is None:
        return f"{entry.name}  {size}  {entry.state}{': ' * bool(entry.progress)}{entry.progress}"
    facts, now = entry.facts, time.time()
    part = [f"split {facts.split}"] if facts.split is not None else []
    part += [f"fields {','.join(facts.fields)}"] if facts.fields is not None else []
    what = ", ".join(part) or "all"
    users = f"in use by pid {', '.join(map(str, entry.users))}" if entry.users else "in use" * entry.is_in_use
    return (
        f"{entry.name}  {size}  {entry.state}  {facts.root} generation {facts.generation} ({what})  "
        f"staged {_age(now - facts.staged_at)} ago by pid {facts.pid} on {facts.host}, "
        f"used {_age(now - entry.used_at)} ago  {users or 'not in use'}"
    )


def _outcome(item: Dropped) -> str:
    if item.stays:
        return f"{item.name}: stays: {item.stays}"
    later = f", as soon as pid {', '.join(map(str, item.users))} closes it" if item.users else ""
    return f"{item.name}: dropped, {size_text(item.freed_bytes)} freed{later}"


def _age(seconds: float) -> str:
    for unit in ("d", "h", "m"):
        if seconds >= 2 * _SECONDS[unit]:
            return f"{seconds / _SECONDS[unit]:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?([a-zA-Z]*)", text.strip())
    if found is None or found[2].upper() not in _BYTES:
        raise RecipeError(f"--reserve must be a size such as 8GB, 500MB or 4GiB, got {text!r}")
    num_bytes = int(float(found[1]) * _BYTES[found[2].upper()])
    if not found[2] and 0 < num_bytes < _FEWEST_PLAIN_BYTES:
        raise RecipeError(f"--reserve must have a unit, such as {found[1]}GB or {found[1]}MiB, got {text!r}")
    return num_bytes


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", text.strip())
    if found is None:
        raise RecipeError(f"--older-than must be an age such as 2d, 12h or 30m, got {text!r}")
    return float(found[1]) * _SECONDS[found[2]]
