"""What a build tells a person and the log, beside how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from precompile.format.manifest import Manifest
from precompile.pipeline.class_changes import describe_classes
from precompile.pipeline.plan import Plan
from precompile.pipeline.progress import Progress
from precompile.pipeline.quarantine import Quarantined
from precompile.pipeline.versions import describe_mix, mixed_versions

_NAMED = 20


def say_first(plan: Plan, why: str, progress: Progress) -> None:
    """Nobody should be surprised that everything is compiled, or that a dataset has no labels."""
    if "label" not in plan.columns:
        progress.say("no labels: there are no class folders, or no label column (--set label_column= names it)")
    if why:
        progress.say(why)
        progress.event("info", "compared", message=why)


def say_last(
    out: Path,
    before: Manifest | None,
    manifest: Manifest,
    failures: Sequence[Quarantined],
    *,
    too_many: bool,
    progress: Progress,
) -> None:
    """After a commit. failures: the new ones; too_many: more than is allowed."""
    moved = "" if before is None else describe_classes(before.classes, manifest.classes)
    if moved:
        progress.say(moved)
        progress.event("warning", "classes changed", message=moved)
    for row in failures[:_NAMED]:
        progress.say(f"quarantined: {row}")
    if len(failures) > _NAMED:
        progress.say(f"… and {len(failures) - _NAMED} more; `precompile info {out}` lists them")
    if too_many:
        message = f"{len(failures)} of the inputs failed for the first time"
        progress.event("error", "new failures", message=message, count=len(failures))
    mix = mixed_versions(manifest.shards)
    if mix:
        progress.say(f"shards were made by several library versions ({describe_mix(mix)}), whose pixels or "
                     "features may differ slightly; --rebuild makes all with the installed ones")  # fmt: skip
        progress.event("warning", "mixed versions", message=describe_mix(mix))
    progress.event("info", "committed", generation=manifest.generation, count=manifest.count)
