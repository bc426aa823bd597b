"""How fast a compiled dataset is read: every case that docs/benchmarks.md shows, against the limits of the machine.

    python scripts/benchmarks/read.py                        # all cases, about ten minutes
    python scripts/benchmarks/read.py --list
    python scripts/benchmarks/read.py --case flat-224 lmdb-224 --rounds 15 --json figures.json
    python scripts/benchmarks/read.py --case shards --shards 8,512 --open-files 256

A ratio is taken in each round, against a reference that runs directly before or after. Figures are medians of rounds;
the first round, a warm-up, is left out. Epochs are shuffled, batches have 256 samples, and everything but `cold-*` is
in the page cache: that takes 6 GB of memory and of disk. numpy.take, the reference of most cases, gathers the same rows
from a map of a plain file (on the same file system) into three rotating, aligned, huge-page buffers, in an order drawn
before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from machine_line import machine_line
from reading import cold, opening, pictures, spectrograms, workers
from reading.question import Answer, CannotMeasure, Cases, Question
from reading.settings import TOY, Settings

CASES: tuple[Cases, ...] = (*pictures.CASES, *spectrograms.CASES, *opening.CASES, *workers.CASES, *cold.CASES)
ROW = "{:<22} {:<56} {:>10} {:>9}  {:<8} {}"


def main() -> None:
    options = parse()
    settings = settings_of(options)
    questions = [question for cases in CASES for question in cases.questions(settings)]
    if options.list:
        for question in questions:
            print(f"{question.case:<22} {question.title:<56} {question.asked}".rstrip())
        return
    names = {question.case for question in questions}
    if unknown := set(options.case) - names:
        raise SystemExit(f"error: no case {', '.join(sorted(unknown))}; choose from {', '.join(sorted(names))}")
    machine = machine_line("precompile", "torch", "numpy", "lmdb")
    print(machine)
    print(f"{settings.pictures:,} pictures, batch {settings.batch_size}, shuffled, {settings.rounds} rounds")
    print(ROW.format("case", "what", "samples/s", "ratio", "asked", "").rstrip())
    answers = []
    for answer in measure(settings, options.case or names):
        print(line(answer), flush=True)
        answers.append(answer)
    if options.json:
        found = {"machine": machine, "settings": asdict(settings), "rows": [answer.to_json() for answer in answers]}
        options.json.write_text(json.dumps(found, indent=1, default=str) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", default=[], metavar="NAME", help="these only")
    parser.add_argument("--list", action="store_true", help="show the cases, measure nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--rounds", type=int, help="default: 9")
    parser.add_argument("--min-seconds", type=float, help="of each run and round (default: 0.2)")
    parser.add_argument("--samples", type=int, dest="pictures", help="pictures of 3x224x224 (default: 6000)")
    parser.add_argument("--batch-size", type=int, help="default: 256")
    parser.add_argument(
        "--shards", type=numbers, metavar="N,N", help="case `shards`: cut into so many (default: 8,512)"
    )
    parser.add_argument("--open-files", type=int, help="limit on open files (ulimit -n; default: 256)")
    parser.add_argument("--dir", type=Path, dest="directory", help="where to write datasets, on a local disk")
    parser.add_argument("--toy", action="store_true", help="tiny sizes: whether everything runs; figures mean nothing")
    return parser.parse_args()


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def settings_of(options: argparse.Namespace) -> Settings:
    given = {name: value for name, value in vars(options).items() if name in Settings.__slots__ and value is not None}
    try:
        return Settings(**{**(TOY if options.toy else {}), **given})
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None


def measure(settings: Settings, names: Sequence[str] | set[str]) -> Iterator[Answer]:
    """Cases whose data the machine cannot hold, or that it cannot run, are answered by why."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (settings.open_files, hard))
    for cases in CASES:
        questions = [question for question in cases.questions(settings) if question.case in names]
        if questions:
            yield from measured(cases, questions, settings)


def measured(cases: Cases, questions: Sequence[Question], settings: Settings) -> Iterator[Answer]:
    with tempfile.TemporaryDirectory(dir=settings.directory, prefix="precompile-") as folder:
        try:
            yield from cases.answers(questions, settings, Path(folder))
        except CannotMeasure as reason:
            yield from (Answer(question, not_measured=str(reason)) for question in questions)


def line(answer: Answer) -> str:
    question = answer.question
    rate = "" if answer.rate is None else f"{answer.rate:,.0f}"
    figure = "" if answer.figure is None else question.show(answer.figure)
    return ROW.format(question.case, question.title, rate, figure, question.asked, answer.verdict).rstrip()


if __name__ == "__main__":
    main()
