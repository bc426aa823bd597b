"""`precompile verify OUT`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from precompile.cli.main import print_json
from precompile.errors import RecipeError
from precompile.pipeline.verify import verify


@click.command("verify")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--full", is_flag=True, help="every checksum, of shards, index and records")
@click.option("--against-source", metavar="N|all", help="decode N inputs again and compare")
@click.option("--json", "as_json", is_flag=True, help="print as JSON")
def command(out: Path, full: bool, against_source: str | None, as_json: bool) -> None:
    """Check the compiled dataset OUT: files and sizes, and on request checksums and the source.

    Exits 1 on a finding.
    """
    findings, compared = verify(out, full=full, against_source=_number(against_source))
    if as_json:
        facts: list[dict[str, Any]] = [{"where": finding.where, "what": finding.what} for finding in findings]
        print_json({"ok": not findings, "findings": facts, "compared": compared})
    else:
        for finding in findings:
            click.echo(f"error: {finding}", err=True)
        what = "all checksums" if full else "files, sizes and places"
        with_source = f", {compared} samples compared with the source" if compared else ""
        click.echo(f"{out}: {what} checked{with_source}: {len(findings) or 'no'} finding{'s' * (len(findings) != 1)}")
    sys.exit(1 if findings else 0)


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if text == "all":
        return 0
    if not text.isdigit() or int(text) < 1:
        raise RecipeError(f"--against-source must be a number of at least 1, or all, got {text!r}")
    return int(text)
