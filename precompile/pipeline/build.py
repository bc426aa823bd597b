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
from precompile.errors import FormatError, ShrinkError, StoppedError, TooManyFailuresError
from precompile.format.generation import generation_dir
from precompile.format.manifest import Manifest
from precompile.pipeline.announce import say_first, say_last
from precompile.pipeline.checksum import values_checksum
from precompile.pipeline.commit import commit_generation
from precompile.pipeline.comparison import Comparison
from precompile.pipeline.compile_input import Job
from precompile.pipeline.compile_plan import PlanCompiler
from precompile.pipeline.compile_sample import make_compiler, resolved_parameters
from precompile.pipeline.forecast import make_forecast
from precompile.pipeline.generation_writer import GenerationWriter
from precompile.pipeline.journal import Receipt
from precompile.pipeline.kept import find_kept, keep_receipts
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.lock import locked, refuse_if_busy
from precompile.pipeline.named_recipes import read_recipe
from precompile.pipeline.options import BuildOptions, Summary
from precompile.pipeline.output import check_apart, check_ours, current_manifest, prepare
from precompile.pipeline.plan import Plan, make_plan
from precompile.pipeline.progress import Progress
from precompile.pipeline.prune import prune
from precompile.pipeline.quarantine import QUARANTINE_NAME, Quarantined, read_quarantine
from precompile.pipeline.recipe import Recipe, make_recipe, merge
from precompile.pipeline.reuse import NONE, Reuse
from precompile.pipeline.sample import Source
from precompile.pipeline.sources import open_source
from precompile.pipeline.storage import empty_dir, storage_errors
from precompile.pipeline.versions import library_versions
from precompile.pipeline.work import Work

__all__ = ["BuildOptions", "Summary", "build", "recipe_of"]

_MAX_SHRINK = 0.1


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


def recipe_of(manifest: Manifest) -> Recipe:
    """The recipe that a generation was made by."""
    return make_recipe(**{key: value for key, value in manifest.recipe.items() if key != "resolved"})


class _Build:
    """One run of `build`: each stage is a method, called in order by `run`."""

    def __init__(
        self, source: str | os.PathLike[str] | Source, out: Path, recipe: Recipe, options: BuildOptions
    ) -> None:
        self._began = time.monotonic()
        self._given, self._out, self._recipe, self._options = source, out, recipe, options

    def run(self) -> Summary:
        if self._options.dry_run:
            check_ours(self._out, self._recipe.store)
            self._open()
            return self._dry_run()
        with Progress(quiet=self._options.quiet, log_file=self._options.log_file) as progress:
            self._open()
            dirs = prepare(self._out, self._recipe.store)
            with locked(dirs), storage_errors(f"cannot write {self._out}"):
                return self._run_locked(dirs, progress)

    def _open(self) -> None:
        """List the source, unless that would be in vain."""
        self._root = ""
        source = self._given
        if isinstance(source, str | os.PathLike):
            root = Path(source).absolute()
            check_apart(root, self._out)
            if not self._options.dry_run:
                refuse_if_busy(BuildDirs(self._out))
            self._root = str(root)
            source = open_source(root, self._recipe)
        self._source: Source = source
        self._compiler = make_compiler(self._recipe, source.media)
        resolved = json.dumps(resolved_parameters(self._compiler), sort_keys=True)
        self._recipe_digest = values_checksum(self._recipe.content_digest, source.media, resolved)

    def _run_locked(self, dirs: BuildDirs, progress: Progress) -> Summary:
        before = current_manifest(self._out, say=progress.say)
        plan = make_plan(self._source, self._recipe)
        comparison = self._comparison(before)
        if before is not None and comparison.is_unchanged(plan, self._root):
            self._forget(dirs)
            prune(dirs, keep=self._options.keep)
            empty_dir(dirs.work)
            progress.event("info", "nothing to do", generation=before.generation, count=before.count)
            return self._summary(plan, before, compiled=0, failures=())
        reuse, why = comparison.find_reuse(plan)
        work = self._work(dirs, plan, reuse)
        say_first(plan, why, progress)
        progress.start(len(work.order))
        job, deadline = self._job(plan, reuse), self._deadline()
        receipts = PlanCompiler(dirs, work, job, options=self._options, deadline=deadline, progress=progress).run()
        return self._commit(dirs, work, receipts, before, progress)

    def _work(self, dirs: BuildDirs, plan: Plan, reuse: Reuse) -> Work:
        """What is to be done, beside what interrupted builds have finished. Only a --rebuild goes on with its own."""
        content = values_checksum(self._recipe_digest, json.dumps(self._versions()))
        if self._options.rebuild:
            return Work.of(plan, reuse, content, rebuild=True)
        wanted = reuse.is_work & (reuse.damaged == NONE)
        work = Work.of(plan, reuse, content, kept=find_kept(dirs, plan, content, wanted))
        if work.read_bounds(dirs.plan) is None and work.is_of_same_content(dirs.plan):
            keep_receipts(dirs, content)
            work = Work.of(plan, reuse, content, kept=find_kept(dirs, plan, content, wanted))
        return work

    def _dry_run(self) -> Summary:
        plan, before = make_plan(self._source, self._recipe), current_manifest(self._out, restore=False)
        comparison = self._comparison(before)
        if before is not None and comparison.is_unchanged(plan, self._root):
            return self._summary(plan, before, compiled=0, failures=())
        reuse, why = comparison.find_reuse(plan)
        work = Work.of(plan, reuse, self._recipe_digest)
        kept = len(reuse.failed)
        with Progress(quiet=self._options.quiet) as progress:
            say_first(plan, why, progress)
            if self._is_shrunk(len(plan) - kept, before):
                progress.say("over 10 % of the samples would be lost: a build needs --allow-shrink")
        try:
            forecast = make_forecast(work, self._job(plan, reuse), self._out, self._options, deadline=self._deadline())
        except StoppedError:
            raise StoppedError("stopped by max_runtime; a dry run keeps nothing") from None
        return Summary(
            len(plan), 0, len(plan) - len(work.order) - kept, kept, self._left_out(), self._seconds(), 0, "", 0,
            forecast=forecast,
        )  # fmt: skip

    def _comparison(self, before: Manifest | None) -> Comparison:
        return Comparison(self._out, self._recipe, self._recipe_digest, self._options, before)

    def _job(self, plan: Plan, reuse: Reuse) -> Job:
        all_files = bool((np.diff(plan.paths.offsets) > 0).all())
        earlier = None if reuse.earlier is None else reuse.earlier.manifest.generation
        source = None if all_files else self._source
        return Job(self._out, self._recipe, self._source.media, len(plan), source, earlier)

    def _commit(
        self, dirs: BuildDirs, work: Work, receipts: list[Receipt], before: Manifest | None, progress: Progress
    ) -> Summary:
        plan = work.plan
        failed = [row for receipt in receipts for _, row in receipt.quarantined]
        if len(failed) == len(plan):
            empty_dir(dirs.receipts)
            message = f"all {len(plan)} inputs failed, nothing was committed; the first: {failed[0]}"
            raise TooManyFailuresError(message)
        writer = GenerationWriter(plan, receipts, self._compiler.fields, work.reuse)
        self._check_shrink(writer.count, before)
        known = set() if before is None else {row.identity for row in self._quarantine_of(before)}
        failures = tuple(row for row in writer.quarantined if row.identity not in known)
        manifest = commit_generation(dirs, writer, self._facts(writer), plan.classes)
        self._forget(dirs)
        prune(dirs, keep=self._options.keep)
        empty_dir(dirs.work)
        too_many = len(failures) > self._options.allowed_failures(len(plan))
        say_last(self._out, before, manifest, failures, too_many=too_many, progress=progress)
        return self._summary(plan, manifest, compiled=writer.compiled, failures=failures)

    def _forget(self, dirs: BuildDirs) -> None:
        """Shards of interrupted builds that nothing uses are no longer wanted."""
        for directory in (dirs.receipts, dirs.kept):
            empty_dir(directory)

    def _check_shrink(self, count: int, before: Manifest | None) -> None:
        if before is not None and self._is_shrunk(count, before):
            raise ShrinkError(
                f"the new generation would have {count} samples, the current one has {before.count}; "
                "nothing was committed. If that is right, run with --allow-shrink"
            )

    def _is_shrunk(self, count: int, before: Manifest | None) -> bool:
        return before is not None and not self._options.allow_shrink and count < before.count * (1 - _MAX_SHRINK)

    def _quarantine_of(self, manifest: Manifest) -> list[Quarantined]:
        try:
            return read_quarantine(generation_dir(self._out, manifest.generation) / QUARANTINE_NAME)
        except FormatError:  # then every failure counts as new
            return []

    def _versions(self) -> Mapping[str, str]:
        return library_versions(self._source.media)

    def _facts(self, writer: GenerationWriter) -> Mapping[str, Any]:
        return {
            "store": self._recipe.store,
            "recipe": {**self._recipe.model_dump(mode="json"), "resolved": resolved_parameters(self._compiler)},
            "recipe_digest": self._recipe_digest,
            "source": {
                "root": self._root,
                "media": self._source.media,
                "digest": writer.plan.digest,
                "columns": writer.source_columns,
            },
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

    def _deadline(self) -> float | None:
        limit = self._options.max_runtime_seconds
        return None if limit is None else self._began + limit
