"""`precompile verify OUT`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from precompile.cli.main import print_json
from precompile.errors import PrecompileError, RecipeError, SourceError
from precompile.pipeline.against_source import compare_with_source
from precompile.pipeline.finding import Finding
from precompile.pipeline.options import Summary
from precompile.pipeline.quarantine import printable
from precompile.pipeline.repair import repair as repair_shards
from precompile.pipeline.verify import verify

_SHOWN = 100


@click.command("verify")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--full", is_flag=True, help="every checksum, of shards, index and records")
@click.option(
    "--against-source", metavar="N|all", help="decode N inputs again, from all classes and shards, and compare"
)
@click.option("--source", metavar="PATH", help="where the raw files lie now  [where they were]")
@click.option(
    "--repair", is_flag=True, help="with --full: compile the samples of damaged shards again, as the source is now"
)
@click.option("--generation", type=int, metavar="N", help="check an older generation  [the current one]")
@click.option("--json", "as_json", is_flag=True, help="print as JSON")
def command(
    out: Path,
    full: bool,
    against_source: str | None,
    source: str | None,
    repair: bool,
    generation: int | None,
    as_json: bool,
) -> None:
    """Check the compiled dataset OUT: files and sizes, and on request checksums and the source.

    Exits 1 on a finding that was not repaired, and 3 when an input can no longer be compiled for the repair. The source
    is only compared with a dataset that is whole.
    """
    count = _number(against_source)
    if source is not None and against_source is None and not repair:
        raise RecipeError("--source needs --against-source or --repair")
    if generation is not None and (repair or against_source is not None):
        raise RecipeError("--generation excludes --repair and --against-source, which are for the current one")
    findings, exit_code = verify(out, full=full or repair, generation=generation), 0
    repaired: list[Finding] = []
    if repair and (summary := _repair(out, findings, source)) is not None:
        exit_code = summary.exit_code
        repaired, findings = findings, verify(out, full=True)
    compared = None
    if against_source is not None and not findings:
        findings, compared = compare_with_source(out, count=count, source=source)
    if as_json:
        facts = {"ok": not findings, "findings": _facts(findings), "repaired": _facts(repaired)}
        print_json({**facts, "compared": compared or 0})
    else:
        _show(repaired, "repaired", err=False)
        _show(findings, "error", err=True)
        checked = f"{'all checksums' if full or repair else 'files, sizes and places'} checked"
        if against_source is not None:
            checked += ", source not compared" if compared is None else f", {compared} samples compared with the source"
        if any(finding.is_in_shard for finding in findings) and not repair and not compared:
            hint = "; --repair makes damaged shards anew from the source"
        else:
            hint = ""
        click.echo(f"{out}: {checked}: {len(findings) or 'no'} finding{'s' * (len(findings) != 1)}{hint}")
    sys.exit(1 if findings else exit_code)


def _repair(out: Path, findings: list[Finding], source: str | None) -> Summary | None:
    """What is damaged is said also when it cannot be repaired."""
    try:
        return repair_shards(out, findings, source=source)
    except PrecompileError as error:
        _show(findings, "error", err=True)
        hint = "; --source PATH says where the raw files lie now" if isinstance(error, SourceError) else ""
        raise type(error)(f"not repaired: {error}{hint}") from None


def _facts(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [{"where": finding.where, **asdict(finding)} for finding in findings]


def _show(findings: Sequence[Finding], what: str, *, err: bool) -> None:
    for finding in findings[:_SHOWN]:
        click.echo(f"{what}: {printable(str(finding))}", err=err)
    if len(findings) > _SHOWN:
        click.echo(f"{what}: … and {len(findings) - _SHOWN} more (--json lists all)", err=err)


def _number(text: str | None) -> int | None:
    """None is all, or none at all."""
    if text is None or text == "all":
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise RecipeError(f"--against-source must be a number of at least 1, or all, got {text!r}")
    return int(text)
