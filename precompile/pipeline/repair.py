"""Compiling the samples of damaged shards again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from precompile.errors import FormatError, SourceError
from precompile.format.generation import list_generations, read_current
from precompile.pipeline.build import build, recipe_of
from precompile.pipeline.finding import Finding
from precompile.pipeline.options import BuildOptions, Summary


def repair(
    root: Path, findings: Sequence[Finding], *, source: str | None = None, options: BuildOptions | None = None
) -> Summary | None:
    """Commit a generation in which the shards that `findings` (of `verify`) name are made anew; None without findings.

    From an unchanged source the same files come out and take the place of the damaged ones, for older generations too;
    these are all kept, whatever `options.keep` says. source: where the raw files lie now, if they have moved.
    Raises FormatError when the damage is in the index, which shards cannot mend, SourceError without a source, and
    what a build raises.
    """
    beyond = [finding for finding in findings if not finding.is_in_shard]
    if beyond:
        raise FormatError(f"{beyond[0]}: only shards can be repaired; restore the file from a backup, or run "
                          f"`precompile build SOURCE {root} --rebuild`")  # fmt: skip
    if not findings:
        return None
    manifest = read_current(root)
    where = source or str(manifest.source.get("root") or "")
    if not where:
        raise SourceError("this dataset was built from a Python object, which --repair does not have; build again")
    damaged = tuple(sorted({finding.shard for finding in findings}))
    keep = len(list_generations(root)) + 1
    options = replace(options or BuildOptions(), distrusted_shards=damaged, keep=keep)
    return build(where, root, recipe=recipe_of(manifest), options=options)
