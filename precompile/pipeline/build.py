"""The stages of a build in order: recipe -> plan -> tasks -> shards -> commit."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from precompile import __version__
from precompile.errors import FormatError, ShrinkError, TooManyFailuresError
from precompile.format.generation import generation_dir, shard_path
from precompile.format.manifest import MANIFEST_NAME, Manifest
from precompile.pipeline.checksum import values_checksum
from precompile.pipeline.commit import GenerationWriter, commit_generation, prune
from precompile.pipeline.compile_plan import PlanCompiler
from precompile.pipeline.compile_sample import make_compiler, resolved_parameters
from precompile.pipeline.compile_shard import Job, library_versions
from precompile.pipeline.journal import Receipt
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.named_recipes import read_recipe
from precompile.pipeline.options import BuildOptions, Summary
from precompile.pipeline.output import check_apart, current_manifest, locked, prepare
from precompile.pipeline.plan import Plan, make_plan
from precompile.pipeline.progress import Progress
from precompile.pipeline.quarantine import QUARANTINE_NAME, Quarantined, read_quarantine
from precompile.pipeline.recipe import Recipe, make_recipe, merge
from precompile.pipeline.sample import Source
from precompile.pipeline.sources import open_source
from precompile.pipeline.storage import empty_dir, storage_errors

__all__ = ["BuildOptions", "Summary", "build"]

_MAX_SHRINK = 0.1
_NAMED_FAILURES = 20


def build(
    source: str | os.PathLike[str] | Source,
    out: str | os.PathLike[str],
    /,
    *,
    recipe: str | Recipe | None = None,
    options: BuildOptions | None = None,
    **keys: Any,
) -> Summary:
    """Compile a raw dataset into `out`, and make it the current generation there.

    Args:
        source: a folder, a table file, or an object with the Source protocol (importable by its module's name).
        out: the directory of the compiled dataset; created, or extended by a generation.
        recipe: a named recipe, a .toml file or a Recipe; `keys` win over it.
        options: how to build; see BuildOptions. Its fields may also be given as keywords.
        keys: recipe keys, such as `size=256, crop=224, features="mel"`; `precompile recipes --keys` lists them.

    May be called from a script without a `__main__` guard, and from a notebook. Bad inputs are quarantined;
    see Summary.exit_code. Raises PrecompileError: RecipeError, SourceError, StorageError, BusyError and others.
    """
    fields = tuple(BuildOptions.__dataclass_fields__)
    given = {name: getattr(options, name) for name in fields} if options is not None else {}
    given |= {name: keys.pop(name) for name in fields if name in keys}
    return _Build(source, Path(out).absolute(), _recipe(recipe, keys), BuildOptions(**given)).run()


def _recipe(base: str | Recipe | None, keys: Mapping[str, Any]) -> Recipe:
    if isinstance(base, Recipe):
        return make_recipe(**merge(base.model_dump(exclude_unset=True), keys))
    return make_recipe(**merge(read_recipe(base) if base else {}, keys))


class _Build:
    """One run of `build`: each stage is a method, called in order by `run`."""

    def __init__(
        self, source: str | os.PathLike[str] | Source, out: Path, recipe: Recipe, options: BuildOptions
    ) -> None:
        self._began = time.monotonic()
        self._out, self._recipe, self._options = out, recipe, options
        self._root = ""
        if isinstance(source, str | os.PathLike):
            root = Path(source).absolute()
            check_apart(root, out)
            self._root = str(root)
            source = open_source(root, recipe)
        self._source: Source = source
        self._compiler = make_compiler(recipe, source.media)
        resolved = json.dumps(resolved_parameters(self._compiler), sort_keys=True)
        versions = json.dumps(library_versions(source.media))
        self._recipe_digest = values_checksum(recipe.digest, resolved, versions)

    def run(self) -> Summary:
        if self._options.dry_run:
            return self._dry_run()
        dirs = prepare(self._out, self._recipe.store)
        with locked(dirs), storage_errors(f"cannot write {self._out}"):
            before = current_manifest(self._out)
            plan = make_plan(self._source, self._recipe)
            if before is not None and self._is_unchanged(plan, before):
                prune(dirs, keep=self._options.keep)
                empty_dir(dirs.work)
                return self._summary(plan, before, compiled=0, failures=())
            with Progress(len(plan), quiet=self._options.quiet, log_file=self._options.log_file) as progress:
                self._say_why(plan, before, progress)
                receipts = self._compile(dirs, plan, progress)
                return self._commit(dirs, plan, receipts, before, progress)

    def _dry_run(self) -> Summary:
        plan, before = make_plan(self._source, self._recipe), current_manifest(self._out)
        if before is not None and self._is_unchanged(plan, before):
            return self._summary(plan, before, compiled=0, failures=())
        return Summary(len(plan), 0, 0, 0, self._left_out(), self._seconds(), 0, "", 0)

    def _say_why(self, plan: Plan, before: Manifest | None, progress: Progress) -> None:
        """Nobody should be surprised that everything is compiled, or that a dataset has no labels."""
        if "label" not in plan.columns:
            progress.say("no labels: there are no class folders, or no label column (--set label_column= names it)")
        if before is None:
            return
        now = self._recipe.model_dump(mode="json")
        changed = [f"{key} {before.recipe.get(key)} -> {value}" for key, value in now.items()
                   if before.recipe.get(key) != value]  # fmt: skip
        if changed:
            progress.say(f"the recipe changed ({', '.join(changed)}): compiling everything again")
        elif before.source.get("digest") != plan.digest:
            progress.say("files were added, removed, renamed or touched: compiling everything again")

    def _is_unchanged(self, plan: Plan, before: Manifest) -> bool:
        if self._options.rebuild or (self._options.retry_quarantined and before.quarantined):
            return False
        if before.source.get("digest") != plan.digest or before.recipe_digest != self._recipe_digest:
            return False
        directory = generation_dir(self._out, before.generation)
        paths = [(shard_path(self._out, shard.file), shard.bytes) for shard in before.shards]
        paths += [(directory / name, item.bytes) for name, item in before.index.items()]
        return (directory / MANIFEST_NAME).exists() and all(
            path.exists() and path.stat().st_size == num_bytes for path, num_bytes in paths
        )

    def _compile(self, dirs: BuildDirs, plan: Plan, progress: Progress) -> list[Receipt]:
        all_files = bool((np.diff(plan.paths.offsets) > 0).all())
        job = Job(self._out, self._recipe, self._source.media, len(plan), None if all_files else self._source)
        return PlanCompiler(dirs, plan, job, self._recipe_digest, self._options, progress).run()

    def _commit(
        self, dirs: BuildDirs, plan: Plan, receipts: list[Receipt], before: Manifest | None, progress: Progress
    ) -> Summary:
        failed = [row for receipt in receipts for _, row in receipt.quarantined]
        if len(failed) == len(plan):
            empty_dir(dirs.receipts)
            message = f"all {len(plan)} inputs failed, nothing was committed; the first: {failed[0]}"
            raise TooManyFailuresError(message)
        writer = GenerationWriter(plan, receipts, self._compiler.fields)
        self._check_shrink(writer.count, before)
        known = set() if before is None else {row.identity for row in self._quarantine_of(before)}
        failures = tuple(row for row in writer.quarantined if row.identity not in known)
        manifest = commit_generation(dirs, writer, self._facts(plan), plan.classes)
        prune(dirs, keep=self._options.keep)
        empty_dir(dirs.work)
        progress.event("info", "committed", generation=manifest.generation, count=manifest.count)
        for row in failures[:_NAMED_FAILURES]:
            progress.say(f"quarantined: {row}")
        if len(failures) > _NAMED_FAILURES:
            progress.say(f"… and {len(failures) - _NAMED_FAILURES} more; `precompile info {self._out}` lists them")
        return self._summary(plan, manifest, compiled=writer.count, failures=failures)

    def _check_shrink(self, count: int, before: Manifest | None) -> None:
        if before is not None and not self._options.allow_shrink and count < before.count * (1 - _MAX_SHRINK):
            raise ShrinkError(
                f"the new generation would have {count} samples, the current one has {before.count}; "
                "nothing was committed. If that is right, run with --allow-shrink"
            )

    def _quarantine_of(self, manifest: Manifest) -> list[Quarantined]:
        try:
            return read_quarantine(generation_dir(self._out, manifest.generation) / QUARANTINE_NAME)
        except FormatError:  # then every failure counts as new
            return []

    def _facts(self, plan: Plan) -> Mapping[str, Any]:
        return {
            "store": self._recipe.store,
            "recipe": {**self._recipe.model_dump(mode="json"), "resolved": resolved_parameters(self._compiler)},
            "recipe_digest": self._recipe_digest,
            "source": {"root": self._root, "media": self._source.media, "digest": plan.digest},
            "left_out": dict(self._source.left_out),
            "made_by": f"precompile {__version__}",
        }

    def _summary(self, plan: Plan, manifest: Manifest, *, compiled: int, failures: tuple[Quarantined, ...]) -> Summary:
        too_many = len(failures) > self._options.allowed_failures(len(plan))
        return Summary(
            planned=len(plan),
            compiled=compiled,
            reused=len(plan) - compiled - manifest.quarantined,
            quarantined=manifest.quarantined,
            left_out=self._left_out(),
            seconds=self._seconds(),
            generation=manifest.generation,
            fingerprint=manifest.fingerprint,
            bytes=sum(shard.bytes for shard in manifest.shards),
            failures=failures,
            exit_code=3 if too_many else 0,
        )

    def _left_out(self) -> int:
        return sum(self._source.left_out.values())

    def _seconds(self) -> float:
        return round(time.monotonic() - self._began, 3)
