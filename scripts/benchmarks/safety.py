"""What it costs that a build cannot lose work: receipts, heartbeats and checksums, against the same build without.

    python scripts/benchmarks/safety.py                      # 6,000 photo-like jpg of about 500x375

One worker's work, in this process: every shard is compiled twice, with and without, in turn, with the order of the
two changing from shard to shard. The figures are of processor time and of wall time, of all shards together and as the
median over shards. Syncing to disk is in both: a build without it would not be a build.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from machine_line import machine_line
from synthetic import make_photos

from precompile.pipeline import compile_input, compile_shard, shard_rows
from precompile.pipeline.compile_input import Job
from precompile.pipeline.compile_sample import make_compiler
from precompile.pipeline.compile_shard import ShardCompiler, Task
from precompile.pipeline.executors.heartbeat import HeartbeatFile
from precompile.pipeline.journal import Receipt
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.plan import make_plan
from precompile.pipeline.recipe import make_recipe
from precompile.pipeline.reuse import Reuse
from precompile.pipeline.sources import open_source
from precompile.pipeline.work import Work


class NoHeartbeat:
    def begin(self, sample: int) -> None: ...

    def loaded(self, xxh3: int) -> None: ...

    def end(self) -> None: ...


@contextlib.contextmanager
def no_checksums_and_receipts() -> Iterator[None]:
    names = itertools.count()
    with (
        mock.patch.object(compile_input.xxhash, "xxh3_64_intdigest", return_value=1),
        mock.patch.object(shard_rows.zlib, "crc32", return_value=0),
        mock.patch.object(compile_shard, "file_checksum", side_effect=(f"{name:032x}" for name in names)),
        mock.patch.object(Receipt, "save"),
    ):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--shard-images", type=int, default=100)
    parser.add_argument("--store", default="lmdb")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run(options, make_photos(Path(scratch) / "raw", count=options.images), Path(scratch) / "out")


def run(options: argparse.Namespace, root: Path, out: Path) -> None:
    recipe = make_recipe(size=256, crop=224, store=options.store)
    source = open_source(root, recipe)
    plan = make_plan(source, recipe)
    dirs = BuildDirs(out)
    for directory in (dirs.plan, dirs.shards, dirs.receipts, dirs.unfinished, dirs.workers):
        directory.mkdir(parents=True)
    Work.of(plan, Reuse.nothing(len(plan)), "").save(dirs.plan)
    job, compiler = Job(out, recipe, source.media, len(plan), None), make_compiler(recipe, source.media)
    compiler.load()
    safe = ShardCompiler(job, compiler, HeartbeatFile(dirs.workers / "0.heartbeat", create=True))
    bare = ShardCompiler(job, compiler, NoHeartbeat())
    times: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    for number, start in enumerate(range(0, len(plan), options.shard_images)):
        task = Task(number, start, min(start + options.shard_images, len(plan)), {})
        for which in ("with", "without") if number % 2 else ("without", "with"):
            if which == "with":
                times[which].append(timed(safe, task))
            else:
                with no_checksums_and_receipts():
                    times[which].append(timed(bare, task))
    report(options, times)


def timed(shards: ShardCompiler, task: Task) -> tuple[float, float]:
    """Processor seconds and wall seconds of one shard."""
    processor, wall = time.process_time(), time.perf_counter()
    shards.finish(shards.compile(task))
    return time.process_time() - processor, time.perf_counter() - wall


def report(options: argparse.Namespace, times: dict[str, list[tuple[float, float]]]) -> None:
    print(machine_line("pillow", "xxhash", "lmdb"))
    print(f"{options.images} jpg of about 500x375, shorter side 256, crop 224, {options.store}, "
          f"{len(times['with'])} shards of {options.shard_images}")  # fmt: skip
    for position, what in enumerate(("processor time", "wall time")):
        with_, without = ([pair[position] for pair in times[which]] for which in ("with", "without"))
        total = sum(with_) / sum(without) - 1
        median = statistics.median(a / b for a, b in zip(with_, without)) - 1
        print(f"{what:<15} {sum(with_):7.2f} s with, {sum(without):7.2f} s without: {total:+.1%}, "
              f"median over shards {median:+.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
