"""`precompile info OUT`"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from precompile.cli.main import print_json
from precompile.errors import DatasetNotFoundError, FormatError
from precompile.format.generation import generation_dir, list_generations, read_current, read_generation
from precompile.format.index import Index
from precompile.format.lease import is_in_use
from precompile.format.manifest import Manifest
from precompile.pipeline.consistency import lies_in_shard
from precompile.pipeline.quarantine import QUARANTINE_NAME, printable, read_quarantine
from precompile.pipeline.recipe import make_recipe
from precompile.pipeline.reuse import alive_records
from precompile.pipeline.versions import describe_mix, mixed_versions

_SHOWN = 20


@click.command("info")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--generations", is_flag=True, help="list the generations that are kept")
@click.option("--json", "as_json", is_flag=True, help="print as JSON")
def command(out: Path, generations: bool, as_json: bool) -> None:
    """Say what the compiled dataset OUT holds, from what, and what was left out."""
    current = read_current(out)
    if generations:
        listed = [_generation(out, number, current.generation) for number in list_generations(out)]
        if as_json:
            print_json(listed)
        else:
            _print_generations(listed)
        return
    facts = describe(out, current)
    if as_json:
        print_json(facts)
    else:
        _print(facts)


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
        "dead_bytes": dead_bytes(out, manifest),
        "fingerprint": manifest.fingerprint,
        "source": dict(manifest.source),
        "recipe": dict(manifest.recipe),
        "versions": sorted(
            {f"{name} {version}" for shard in manifest.shards for name, version in shard.versions.items()}
        ),
        "mixed_versions": {name: list(found) for name, found in mixed_versions(manifest.shards).items()},
        "left_out": dict(manifest.left_out),
        "quarantined": [asdict(row) for row in rows],
    }


def dead_bytes(out: Path, manifest: Manifest) -> int:
    """Bytes of records in the generation's shards that it does not use: of files that were changed or removed."""
    records = np.array([shard.records for shard in manifest.shards])
    index = Index(generation_dir(out, manifest.generation), manifest.schema, manifest.count)
    if not lies_in_shard(manifest, index.record).all():
        raise FormatError(f"{index.directory / 'record.npy'}: damaged; run `precompile verify {out} --full`")
    dead = records - alive_records(index.record, len(records))
    num_bytes = np.array([shard.bytes for shard in manifest.shards])
    return int((num_bytes * (np.maximum(dead, 0) / np.maximum(records, 1))).sum())


def _generation(out: Path, number: int, current: int) -> dict[str, Any]:
    facts = {"generation": number, "current": number == current, "in_use": is_in_use(generation_dir(out, number))}
    try:
        manifest = read_generation(out, number)
    except (FormatError, DatasetNotFoundError) as error:
        return {**facts, "error": str(error)}
    return {
        **facts,
        "created_at": manifest.created_at,
        "count": manifest.count,
        "quarantined": manifest.quarantined,
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "fingerprint": manifest.fingerprint,
    }


def _print_generations(listed: list[dict[str, Any]]) -> None:
    for facts in listed:
        what = facts.get("error") or (
            f"{facts['created_at']}  {facts['count']} samples, {facts['quarantined']} quarantined, "
            f"{facts['bytes'] / 1e6:,.1f} MB  {facts['fingerprint']}"
        )
        use = "  in use" if facts["in_use"] else ""
        click.echo(printable(f"{'*' if facts['current'] else ' '} {facts['generation']:>6}  {what}{use}"))


def _print(facts: dict[str, Any]) -> None:
    fields = ", ".join(_field(field) for field in facts["fields"])
    usual = make_recipe().model_dump(mode="json")
    set_keys = {key: value for key, value in facts["recipe"].items() if key in usual and value != usual[key]}
    lines = {
        "dataset": f"{facts['root']}, generation {facts['generation']} of {facts['created_at']} by {facts['made_by']}",
        "samples": f"{facts['count']} ({', '.join(f'{name} {count}' for name, count in facts['splits'].items())})",
        "fields": fields,
        "classes": f"{len(facts['classes'])}: {_some(facts['classes'])}" if facts["classes"] else "none",
        "stored": f"{facts['bytes'] / 1e6:,.1f} MB in {facts['shards']} {facts['store']} shards"
        + (f", of which {facts['dead_bytes'] / 1e6:,.1f} MB are no longer used" if facts["dead_bytes"] else ""),
        "source": f"{facts['source'].get('root') or 'a Python object'} ({facts['source'].get('media')})",
        "recipe": ", ".join(f"{key}={value}" for key, value in set_keys.items()) or "defaults",
        "versions": ", ".join(facts["versions"]),
        "fingerprint": facts["fingerprint"],
        "left out": ", ".join(f"{count} {reason}" for reason, count in facts["left_out"].items()) or "nothing",
        "quarantined": str(len(facts["quarantined"])),
    }
    for name, text in lines.items():
        click.echo(printable(f"{name:<12} {text}"))
    if facts["mixed_versions"]:
        mix = describe_mix({name: tuple(found) for name, found in facts["mixed_versions"].items()})
        text = f"shards were made by {mix}; build --rebuild makes all with the installed ones"
        click.echo(printable(f"{'mixed':<12} {text}"))
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
