"""`precompile doctor`"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from precompile.advise.doctor import as_json as checks_as_json
from precompile.advise.doctor import doctor
from precompile.cli.main import print_json


@click.command("doctor")
@click.option("--dataset", type=click.Path(path_type=Path), metavar="OUT", help="also look at where this dataset lies")
@click.option("--batch-size", type=int, help="samples per batch you train with")
@click.option("--workers", type=int, help="DataLoader workers you train with")
@click.option("--json", "as_json", is_flag=True, help="print as JSON")
def command(dataset: Path | None, batch_size: int | None, workers: int | None, as_json: bool) -> None:
    """Check this machine or container for what makes loaders slow or hang. Exits 1 when a check fails."""
    checks = doctor(dataset=dataset, batch_size=batch_size, workers=workers)
    if as_json:
        print_json(checks_as_json(checks))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            click.echo(f"{check.status:<5} {check.name:<{width}}  {check.value}")
            if check.advice and check.status != "ok":
                click.echo(f"      {'':<{width}}  → {check.advice}")
    sys.exit(1 if any(check.status == "fail" for check in checks) else 0)
