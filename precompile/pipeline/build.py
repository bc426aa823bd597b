"""The stages of a build in order: recipe -> plan -> tasks -> shards -> commit."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precompile import __version__, machine
from precompile.errors import RecipeError, ShrinkError, TooManyFailuresError
from precompile.format.generation import generation_dir, shard_path
from precompile.format.manifest import Manifest
from precompile.pipeline.checksum import values_checksum
from precompile.pipeline.commit import GenerationWriter, commit_generation, prune
from precompile.pipeline.compile_sample import SampleCompiler, make_compiler, resolved_parameters
from precompile.pipeline.compile_shard import Job, library_versions
from precompile.pipeline.executors.local import LocalExecutor
from precompile.pipeline.executors.worker import Probed, Task
from precompile.pipeline.journal import Receipt, load_receipt
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.named_recipes import read_recipe
from precompile.pipeline.output import check_apart, check_room, current_manifest, locked, prepare
from precompile.pipeline.plan import Plan, cut_tasks, make_plan
from precompile.pipeline.progress import Progress
from precompile.pipeline.quarantine import QUARANTINE_NAME, Quarantined, read_quarantine
from precompile.pipeline.recipe import Recipe, make_recipe, merge
from precompile.pipeline.sample import Source
from precompile.pipeline.sources import open_source
from precompile.pipeline.storage import empty_dir, storage_errors, write_atomically

_PROBES = 16
_MAX_SHRINK = 0.1
_NAMED_FAILURES = 20


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How to build; none of it changes the bytes that come out."""

    workers: int | None = None
    """Processes; default: the CPUs this container really has."""
    timeout_seconds: float = 60.0
    """A sample that takes longer is quarantined."""
    max_failures: str | int = 0
    """New failures that are still a success: a number, or a share of the planned inputs such as `1%`."""
    on_error: str = "quarantine"
    """`quarantine` or `stop`."""
    allow_shrink: bool = False
    rebuild: bool = False
    """Compile everything again, even if nothing changed."""
    retry_quarantined: bool = False
    keep: int = 2
    """Generations that are kept."""
    dry_run: bool = False
    quiet: bool = False
    log_file: Path | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("workers", self.workers, 1), ("keep", self.keep, 1)):
            if value is not None and value < least:
                raise RecipeError(f"{name} must be at least {least}, got {name}={value}")
        if not self.timeout_seconds > 0:
            raise RecipeError(f"timeout must be more than 0 seconds, got timeout={self.timeout_seconds}")
        if self.on_error not in ("quarantine", "stop"):
            raise RecipeError(f"on_error must be quarantine or stop, got on_error={self.on_error!r}")
        self.allowed_failures(100)

    def allowed_failures(self, planned: int) -> int:
        text = str(self.max_failures)
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            number = -1.0
        if number < 0 or (not text.endswith("%") and number != int(number)):
            raise RecipeError(f"max_failures must be N or P%, got max_failures={self.max_failures!r}")
        return int(planned * number / 100) if text.endswith("%") else int(number)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a build did; counts are of inputs. planned = compiled + reused + quarantined."""

    planned: int
    compiled: int
    reused: int
    quarantined: int
    left_out: int
    seconds: float
    generation: int
    fingerprint: str
    bytes: int
    """Of the generation's shards."""
    failures: tuple[Quarantined, ...] = ()
    """New or changed failures, which count against max_failures."""
    exit_code: int = 0
    """0, or 3 when there are more new failures than allowed."""

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        return {name: value for name, value in values.items() if name not in ("failures", "exit_code")}


def build(
    source: str | os.PathLike[str] | Source,
    out: str | os.PathLike[str],
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
    names = BuildOptions.__dataclass_fields__
    given = {name: keys.pop(name) for name in list(keys) if name in names}
    settings = BuildOptions(**{**(_fields(options) if options else {}), **given})
    base = (
        recipe.model_dump(exclude_unset=True) if isinstance(recipe, Recipe) else read_recipe(recipe) if recipe else {}
    )
    return _Build(source, Path(out).absolute(), make_recipe(**merge(base, keys)), settings).run()


class _Build:
    """One run of `build`: each stage is a method, called in order by `run`."""

    def __init__(
        self, source: str | os.PathLike[str] | Source, out: Path, recipe: Recipe, options: BuildOptions
    ) -> None:
        self._began = time.monotonic()
        self._out, self._recipe, self._options = out, recipe, options
        self._root = Path(source).absolute() if isinstance(source, str | os.PathLike) else None
        if self._root is not None:
            check_apart(self._root, out)
        self._source: Source = open_source(self._root, recipe) if self._root is not None else source  # type: ignore[assignment]
        self._compiler: SampleCompiler = make_compiler(recipe, self._source.media)
        self._versions = library_versions(self._source.media)
        resolved = json.dumps(resolved_parameters(self._compiler), sort_keys=True)
        self._recipe_digest = values_checksum(recipe.digest, resolved, json.dumps(self._versions))

    def run(self) -> Summary:
        if self._options.dry_run:
            return self._dry_run()
        dirs = prepare(self._out, self._recipe.store)
        with locked(dirs), storage_errors(f"cannot write {self._out}"):
            before = current_manifest(self._out)
            plan = make_plan(self._source, self._recipe)
            if before is not None and self._is_unchanged(plan, before):
                return self._summary(plan, before, compiled=0, failures=())
            with Progress(len(plan), quiet=self._options.quiet, log_file=self._options.log_file) as progress:
                receipts = self._compile(dirs, plan, progress)
                return self._commit(dirs, plan, receipts, before, progress)

    def _dry_run(self) -> Summary:
        plan = make_plan(self._source, self._recipe)
        return Summary(len(plan), 0, 0, 0, sum(self._source.left_out.values()), self._seconds(), 0, "", 0)

    def _is_unchanged(self, plan: Plan, before: Manifest) -> bool:
        if self._options.rebuild or (self._options.retry_quarantined and before.quarantined):
            return False
        if before.source.get("digest") != plan.digest or before.recipe_digest != self._recipe_digest:
            return False
        paths = [(shard_path(self._out, shard.file), shard.bytes) for shard in before.shards]
        return all(path.exists() and path.stat().st_size == num_bytes for path, num_bytes in paths)

    def _compile(self, dirs: BuildDirs, plan: Plan, progress: Progress) -> list[Receipt]:
        bounds = self._resumable_bounds(dirs, plan)
        if bounds is None:
            self._clear(dirs)
            plan.save(dirs.plan)
        job = Job(
            self._out, self._recipe, self._source.media, len(plan), None if plan.paths.data.size else self._source
        )
        workers = self._options.workers or machine.usable_cpus()
        empty_dir(dirs.workers)
        empty_dir(dirs.unfinished)
        with LocalExecutor(
            job,
            dirs.workers,
            workers=workers,
            timeout_seconds=self._options.timeout_seconds,
            on_progress=progress.running,
        ) as executor:
            if bounds is None:
                bounds = self._cut(dirs, plan, executor)
            tasks = [Task(number, *bounds[number : number + 2].tolist(), known={}) for number in range(len(bounds) - 1)]
            receipts = [receipt for task in tasks if (receipt := self._finished(dirs, task)) is not None]
            done = {receipt.task for receipt in receipts}
            progress.finish(sum(task.stop - task.start for task in tasks if task.number in done))
            progress.say(f"compiling {len(plan)} inputs in {len(tasks)} shards with {workers} worker processes"
                         + (f" ({len(done)} shards are done already)" if done else ""))  # fmt: skip
            progress.event("info", "started", inputs=len(plan), tasks=len(tasks), resumed=len(done), workers=workers)
            for receipt in executor.run([task for task in tasks if task.number not in done]):
                self._note(receipt, progress)
                progress.finish(len(receipt.samples) + len(receipt.quarantined))
                receipts.append(receipt)
        return sorted(receipts, key=lambda receipt: receipt.task)

    def _note(self, receipt: Receipt, progress: Progress) -> None:
        for _, row in receipt.quarantined:
            progress.event("warning", "quarantined", task=receipt.task, sample=row.key, message=row.message)
            if self._options.on_error == "stop":
                raise TooManyFailuresError(f"{row}; stopped by on_error=stop, nothing was committed")
        progress.event("info", "shard finished", task=receipt.task, seconds=round(receipt.seconds, 3))

    def _plan_identity(self, plan: Plan) -> str:
        return values_checksum(plan.digest, self._recipe_digest, plan.paths)

    def _resumable_bounds(self, dirs: BuildDirs, plan: Plan) -> np.ndarray | None:
        """Where an interrupted build of the same plan cut its tasks; its receipts are then good."""
        try:
            facts = json.loads((dirs.plan / "plan.json").read_text())
            if facts["identity"] != self._plan_identity(plan) or self._options.rebuild:
                return None
            return np.array(facts["bounds"], np.int64)
        except (OSError, ValueError, KeyError):
            return None

    def _clear(self, dirs: BuildDirs) -> None:
        for directory in (dirs.plan, dirs.receipts):
            empty_dir(directory)

    def _cut(self, dirs: BuildDirs, plan: Plan, executor: LocalExecutor) -> np.ndarray:
        chosen = np.unique(np.linspace(0, len(plan) - 1, min(_PROBES, len(plan))).round().astype(np.int64))
        total = _expected_bytes(plan, executor.probe(tuple(chosen.tolist())))
        check_room(dirs, total)
        bounds = cut_tasks(plan, total, self._recipe.shard_size)
        facts = {"identity": self._plan_identity(plan), "bounds": bounds.tolist()}
        write_atomically(dirs.plan / "plan.json", json.dumps(facts).encode())
        return bounds

    def _finished(self, dirs: BuildDirs, task: Task) -> Receipt | None:
        receipt = load_receipt(dirs.receipts, task.number)
        if receipt is None or receipt.shard is None:
            return receipt
        path = dirs.shards / receipt.shard.file
        return receipt if path.exists() and path.stat().st_size == receipt.shard.bytes else None

    def _commit(
        self, dirs: BuildDirs, plan: Plan, receipts: list[Receipt], before: Manifest | None, progress: Progress
    ) -> Summary:
        failed = [row for receipt in receipts for _, row in receipt.quarantined]
        if len(failed) == len(plan):
            raise TooManyFailuresError(f"all {len(plan)} inputs failed, nothing was committed; the first: {failed[0]}")
        writer = GenerationWriter(plan, receipts, self._compiler.fields)
        self._check_shrink(writer.count, before)
        known = set() if before is None else {row.identity for row in self._quarantine_of(before)}
        failures = tuple(row for row in writer.quarantined if row.identity not in known)
        manifest = commit_generation(dirs, writer, self._facts(plan), plan.classes)
        prune(dirs, keep=self._options.keep)
        empty_dir(dirs.work)
        progress.event("info", "committed", generation=manifest.generation, count=manifest.count)
        summary = self._summary(plan, manifest, compiled=writer.count, failures=failures)
        for row in failures[:_NAMED_FAILURES]:
            progress.say(f"quarantined: {row}")
        if len(failures) > _NAMED_FAILURES:
            progress.say(f"… and {len(failures) - _NAMED_FAILURES} more")
        return summary

    def _check_shrink(self, count: int, before: Manifest | None) -> None:
        if before is not None and not self._options.allow_shrink and count < before.count * (1 - _MAX_SHRINK):
            raise ShrinkError(f"the new generation would have {count} samples, the current one has {before.count}; "
                              "nothing was committed. If that is right, run with --allow-shrink")  # fmt: skip

    def _quarantine_of(self, manifest: Manifest) -> list[Quarantined]:
        return read_quarantine(generation_dir(self._out, manifest.generation) / QUARANTINE_NAME)

    def _facts(self, plan: Plan) -> Mapping[str, Any]:
        root = str(self._root) if self._root is not None else ""
        return {
            "store": self._recipe.store,
            "recipe": {**self._recipe.model_dump(mode="json"), "resolved": resolved_parameters(self._compiler)},
            "recipe_digest": self._recipe_digest,
            "source": {"root": root, "media": self._source.media, "digest": plan.digest},
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
            left_out=sum(self._source.left_out.values()),
            seconds=self._seconds(),
            generation=manifest.generation,
            fingerprint=manifest.fingerprint,
            bytes=sum(shard.bytes for shard in manifest.shards),
            failures=failures,
            exit_code=3 if too_many else 0,
        )

    def _seconds(self) -> float:
        return round(time.monotonic() - self._began, 3)


def _fields(options: BuildOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in BuildOptions.__dataclass_fields__}


def _expected_bytes(plan: Plan, probed: Probed) -> int:
    """From the probed inputs: their mean if all records are equal, else their mean growth times all input bytes."""
    if not probed.record_bytes:
        return 0
    mean = sum(probed.record_bytes) / len(probed.record_bytes)
    if len(set(probed.record_bytes)) == 1:
        return int(mean * len(plan))
    growth = sum(probed.record_bytes) / max(1, sum(probed.input_bytes))
    return int(growth * np.maximum(plan.stat[:, 0], 0).sum())
