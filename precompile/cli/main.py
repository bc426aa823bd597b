"""`precompile`: finds the command, and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any

import click

from precompile import __version__
from precompile.errors import PrecompileError

COMMANDS = {
    "build": "compile a raw dataset",
    "info": "say what a compiled dataset holds",
    "verify": "check files, checksums, and samples against their source; repair damaged shards",
    "diff": "say what became different from one generation to another",
    "prune": "remove old generations",
    "cache": "keep compiled datasets on a RAM disk",
    "demo": "make a small dataset, compile it and train from it",
    "recipes": "list the ready-made recipes, or show one",
    "doctor": "check this machine for what makes loaders slow or hang",
}


class _Commands(click.Group):
    """Imports a command's module only when it is asked for, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"precompile.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="precompile")
def cli() -> None:
    """Compile image and audio datasets ahead of time; train from memory reads.

    Exit codes: 0 done; 1 failed; 2 wrong usage or recipe; 3 committed, but with new failures beyond
    --max-failures; 75 run again: another build is at work, or this one was stopped and kept its work.
    """


def _stop(*_: object) -> None:
    _on_signals(signal.SIG_IGN)  # whoever asks twice gets the same orderly end
    raise KeyboardInterrupt


def _on_signals(handler: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def main() -> None:
    _on_signals(_stop)  # before commands import what they need, which takes a second
    try:
        _run()
    finally:
        _on_signals(signal.SIG_IGN)  # what is done is done, however long the interpreter takes to end


def _run() -> None:
    try:
        cli(standalone_mode=False, prog_name="precompile")
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _show_usage_error(error)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(75)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except PrecompileError as error:
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        sys.exit(error.exit_code)
    except (OSError, RecursionError, ValueError, TypeError, KeyError, RuntimeError) as error:
        if os.environ.get("PRECOMPILE_TRACEBACK"):
            raise
        text = " ".join(str(error).split())[:500]
        click.echo(f"error: {type(error).__name__}: {text} (PRECOMPILE_TRACEBACK=1 shows where)", err=True)
        sys.exit(1)
    except MemoryError:
        click.echo("error: this process ran out of memory; use fewer --workers or a larger container", err=True)
        sys.exit(1)


def _show_usage_error(error: click.ClickException) -> None:
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        return
    hint = f" (see `{context.command_path} --help`)" if context is not None else ""
    click.echo(f"error: {' '.join(error.format_message().split())}{hint}", err=True)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=1))
