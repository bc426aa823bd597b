"""`precompile info OUT`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from precompile.cli.main import print_json
from precompile.format.generation import generation_dir, list_generations, read_current, read_generation
from precompile.format.manifest import Manifest
from precompile.pipeline.quarantine import QUARANTINE_NAME, printable, read_quarantine
from precompile.pipeline.recipe import make_recipe

_SHOWN = 20


@click.command("info")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--generations", is_flag=True, help="list the generations that are kept")
@click.option("--json", "as_json", is_flag=True, help="print as JSON")
def command(out: Path, generations: bool, as_json: bool) -> None:
    """Say what the compiled dataset OUT holds, from what, and what was left out."""
    current = read_current(out)
    if generations:
        facts = [_generation(out, number, current.generation) for number in list_generations(out)]
        if as_json:
            print_json(facts)
        else:
            for fact in facts:
                mark = "*" if fact["current"] else " "
                click.echo(
                    f"{mark} {fact['generation']:>6}  {fact['created_at']}  {fact['count']} samples, "
                    f"{fact['quarantined']} quarantined  {fact['fingerprint']}"
                )
        return
    facts_now = describe(out, current)
    if as_json:
        print_json(facts_now)
    else:
        _print(facts_now)


def describe(out: Path, manifest: Manifest) -> dict[str, Any]:
    rows = read_quarantine(generation_dir(out, manifest.generation) / QUARANTINE_NAME)
    return {
        "root": str(out),
        "generation": manifest.generation,
        "created_at": manifest.created_at,
        "made_by": manifest.made_by,
        "count": manifest.count,
        "splits": {split.name: split.count for split in manifest.splits},
        "classes": list(manifest.classes or ()),
        "fields": manifest.schema.to_json(),
        "store": manifest.store,
        "shards": len(manifest.shards),
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "fingerprint": manifest.fingerprint,
        "source": dict(manifest.source),
        "recipe": dict(manifest.recipe),
        "versions": sorted(
            {f"{name} {version}" for shard in manifest.shards for name, version in shard.versions.items()}
        ),
        "left_out": dict(manifest.left_out),
        "quarantined": [
            {"key": r.key, "split": r.split, "stage": r.stage, "error": r.error, "message": r.message} for r in rows
        ],
    }


def _generation(out: Path, number: int, current: int) -> dict[str, Any]:
    manifest = read_generation(out, number)
    return {
        "generation": number,
        "current": number == current,
        "created_at": manifest.created_at,
        "count": manifest.count,
        "quarantined": manifest.quarantined,
        "fingerprint": manifest.fingerprint,
    }


def _print(facts: dict[str, Any]) -> None:
    fields = ", ".join(_field(field) for field in facts["fields"])
    usual = make_recipe().model_dump(mode="json")
    set_keys = {key: value for key, value in facts["recipe"].items() if key in usual and value != usual[key]}
    lines = {
        "dataset": f"{facts['root']}, generation {facts['generation']} of {facts['created_at']} by {facts['made_by']}",
        "samples": f"{facts['count']} ({', '.join(f'{name} {count}' for name, count in facts['splits'].items())})",
        "fields": fields,
        "classes": f"{len(facts['classes'])}: {_some(facts['classes'])}" if facts["classes"] else "none",
        "stored": f"{facts['bytes'] / 1e6:,.1f} MB in {facts['shards']} {facts['store']} shards",
        "source": f"{facts['source'].get('root') or 'a Python object'} ({facts['source'].get('media')})",
        "recipe": ", ".join(f"{key}={value}" for key, value in set_keys.items()) or "defaults",
        "versions": ", ".join(facts["versions"]),
        "fingerprint": facts["fingerprint"],
        "left out": ", ".join(f"{count} {reason}" for reason, count in facts["left_out"].items()) or "nothing",
        "quarantined": str(len(facts["quarantined"])),
    }
    for name, text in lines.items():
        click.echo(f"{name:<12} {text}")
    for row in facts["quarantined"][:_SHOWN]:
        click.echo(f"  {printable(row['key'])}: {row['stage']}: {row['message']}")
    if len(facts["quarantined"]) > _SHOWN:
        click.echo(f"  … and {len(facts['quarantined']) - _SHOWN} more (--json lists all)")


def _field(field: dict[str, Any]) -> str:
    shape = ", ".join("varies" if size is None else str(size) for size in field["shape"])
    unit = f" [{field['unit']}]" if field["unit"] else ""
    return f"{field['name']} {field['dtype']}" + (f" ({shape})" if shape else "") + unit


def _some(names: list[str]) -> str:
    return ", ".join(map(printable, names[:10])) + (", …" if len(names) > 10 else "")
