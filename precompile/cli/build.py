"""`precompile build SOURCE OUT`"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from precompile.cli.main import print_json
from precompile.errors import RecipeError, StoppedError
from precompile.pipeline.build import BuildOptions, Summary, build
from precompile.pipeline.named_recipes import recipe_names
from precompile.pipeline.options import Forecast

_NAMED = 20
_KEPT = "finished shards are kept, run the same command again to go on"

_RECIPE_OPTIONS = (
    ("source", str, "image_folder, audio_folder or table; default: found by looking"),
    ("store", click.Choice(["lmdb", "flat", "tmpfs"]), "kind of shard; tmpfs: flat, with OUT on a RAM disk  [lmdb]"),
    ("encoding", click.Choice(["raw", "bmp"]), "how an image is stored  [raw]"),
    ("size", str, "images: N or HxW; untouched by default"),
    ("fit", click.Choice(["short", "exact", "pad", "stretch"]), "cover or letterbox or squeeze to --size  [short]"),
    ("crop", int, "images: side of the center crop, after resizing"),
    ("max-side", int, "images: upper limit of the longer side"),
    ("filter", click.Choice(["bilinear", "bicubic", "lanczos", "box"]), "of resizing, always antialiased  [bilinear]"),
    ("engine", str, "images: exact (Pillow) or fast (OpenCV and torch, at most 1 level off)  [exact]"),
    ("parity", click.Choice(["torchvision"]), "what ImageFolder gives: no EXIF rotation, 16 bit clipped"),
    ("features", str, "audio: mel, waveform, or both with a comma  [mel]"),
    ("sample-rate", int, "audio: Hz to resample to"),
    ("dtype", click.Choice(["uint8", "int16", "float16", "float32"]), "[uint8 images, float16 log features]"),
    ("order", click.Choice(["shuffled", "source"]), "how samples are placed in shards  [shuffled]"),
    ("shard-size", int, "bytes; default: about 64 shards"),
)  # fmt: skip


def _recipe_options(function: Any) -> Any:
    for name, kind, text in reversed(_RECIPE_OPTIONS):
        function = click.option(f"--{name}", name.replace("-", "_"), type=kind, default=None, help=text)(function)
    return function


@click.command("build")
@click.argument("source_path", metavar="SOURCE", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--recipe", metavar="NAME|FILE.toml", help=f"a ready-made recipe ({', '.join(recipe_names())}) or a file")
@_recipe_options
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="any recipe key, such as features.mel.num_mels=64; see `recipes --keys`",
)
@click.option("--workers", type=int, help="processes  [the CPUs this container really has]")
@click.option(
    "--timeout", type=float, default=60.0, show_default=True, help="seconds after which a sample is quarantined"
)
@click.option(
    "--max-failures", default="0", show_default=True, metavar="N|P%", help="new failures that are still a success"
)
@click.option("--on-error", type=click.Choice(["quarantine", "stop"]), default="quarantine", show_default=True,
    help="leave a bad input out, or stop without a commit")  # fmt: skip
@click.option("--retry-quarantined", is_flag=True, help="try inputs again that failed before and have not changed")
@click.option("--allow-shrink", is_flag=True, help="commit even if over 10 % of the samples are lost")
@click.option("--rebuild", is_flag=True, help="compile everything again")
@click.option("--keep", type=int, default=2, show_default=True, help="generations to keep")
@click.option("--dry-run", is_flag=True, help="compile a small sample elsewhere, and state bytes, time and shards")
@click.option("--max-runtime", type=float, metavar="SECONDS", help="stop then, keep finished shards, exit 75")
@click.option("--log-file", type=click.Path(path_type=Path), help="append structured lines (JSON)")
@click.option("--quiet", is_flag=True, help="no progress")
@click.option("--json", "as_json", is_flag=True, help="print the summary as JSON")
def command(
    source_path: Path, out: Path, recipe: str | None, settings: tuple[str, ...], as_json: bool, **given: Any
) -> None:
    """Compile SOURCE, a folder or a table of raw files, into OUT.

    \b
    precompile build photos/ photos.pc --size 256 --crop 224
    precompile build clips/ clips.pc --sample-rate 16000 --features mel
    precompile build train.csv train.pc --set label_column=species
    """
    names = {name.replace("-", "_") for name, _, _ in _RECIPE_OPTIONS}
    keys = {name: value for name, value in given.items() if name in names and value is not None}
    options = BuildOptions(
        timeout_seconds=given["timeout"],
        max_runtime_seconds=given["max_runtime"],
        **{name: given[name] for name in BuildOptions.__dataclass_fields__ if name in given},
    )
    try:
        summary = build(source_path, out, recipe=recipe, options=options, **_with_settings(keys, settings))
    except KeyboardInterrupt:
        kept = "a dry run keeps nothing" if options.dry_run else _KEPT
        raise StoppedError(f"stopped; {kept}") from None
    if as_json:
        print_json(summary.to_json())
    else:
        _print(summary, out, dry_run=options.dry_run)
    if summary.exit_code == 3:
        _say_failures(summary, out, named=not options.quiet)
    sys.exit(summary.exit_code)


def _say_failures(summary: Summary, out: Path, *, named: bool) -> None:
    """named: their names were said before."""
    for row in () if named else summary.failures[:_NAMED]:
        click.echo(f"quarantined: {row}", err=True)
    many = f"{_count(len(summary.failures), 'new failure')} {'is' if len(summary.failures) == 1 else 'are'}"
    click.echo(f"{many} more than --max-failures allows; see `precompile info {out}`", err=True)


def _with_settings(keys: dict[str, Any], settings: tuple[str, ...]) -> dict[str, Any]:
    """`--set a.b=1` sets {"a": {"b": 1}}; values are JSON where they can be, else text."""
    for setting in settings:
        name, sign, text = setting.partition("=")
        if not sign or not name:
            raise RecipeError(f"--set needs KEY=VALUE, got {setting!r}")
        try:
            value: Any = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        *sections, last = name.split(".")
        target = keys
        for section in sections:
            inner = target.get(section, {})
            target[section] = inner if isinstance(inner, dict) else {part.strip(): {} for part in str(inner).split(",")}
            target = target[section]
        target[last] = value
    return keys


def _print(summary: Summary, out: Path, *, dry_run: bool) -> None:
    if dry_run:
        _print_forecast(summary, summary.forecast)
        return
    parts = f"{summary.compiled} compiled + {summary.reused} reused + {summary.quarantined} quarantined"
    counts = f"{summary.planned} planned = {parts}"
    click.echo(f"{out}: generation {summary.generation}, {counts}; {summary.left_out} left out")
    click.echo(f"{summary.bytes / 1e6:,.1f} MB in {summary.seconds:.1f} s, fingerprint {summary.fingerprint}")


def _print_forecast(summary: Summary, forecast: Forecast | None) -> None:
    if forecast is None:
        click.echo(f"nothing to do: {summary.reused} samples are up to date, {summary.quarantined} in quarantine")
        return
    kept = f", {summary.reused} are up to date, {summary.quarantined} stay in quarantine" if summary.generation else ""
    click.echo(f"{forecast.inputs} of {summary.planned} inputs would be compiled{kept}; {summary.left_out} left out")
    size, time = forecast.bytes, forecast.seconds
    click.echo(
        f"bytes   {size.expected / 1e6:,.1f} MB ({size.low / 1e6:,.1f} to {size.high / 1e6:,.1f}) in "
        f"{_count(forecast.shards, 'shard')}, and {forecast.temporary_bytes / 1e6:,.1f} MB for plan and receipts; "
        f"{forecast.free_bytes / 1e6:,.0f} MB are free"
    )
    click.echo(f"time    {time.expected:,.0f} s ({time.low:,.0f} to {time.high:,.0f}), without listing the source")
    click.echo(
        f"by {forecast.sampled} inputs compiled as a sample, of which {forecast.failed} failed; nothing was written"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
