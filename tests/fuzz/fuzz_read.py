"""Reads a damaged dataset in every way, and judges what came of it."""

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzz_damage import Case
from fuzz_datasets import GENERATIONS

from precompile import CompiledDataset, Loader
from precompile.errors import PrecompileError
from precompile.format.generation import generation_dir, list_generations
from precompile.pipeline.quarantine import QUARANTINE_NAME, read_quarantine
from precompile.pipeline.verify import verify

DOCUMENTED = re.compile(r"no field '|split must be one of |no column '|out of range for|sample numbers? must be from")
"""Messages of the ValueErrors and IndexErrors that the read side documents."""


@dataclass
class Seen:
    """What reading gave, part by part: digests of values, messages of errors, tracebacks of what is no answer."""

    values: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    raw: dict[str, str] = field(default_factory=dict)

    def read(self, part: str, function: Callable[[], Any]) -> Any:
        try:
            value = function()
            self.values[part] = digest(value)
            return value
        except PrecompileError as error:
            self.refused[part] = str(error)
        except Exception as error:  # whatever else: that is what is looked for
            documented = type(error) in (ValueError, IndexError) and DOCUMENTED.search(str(error))
            if documented:
                self.refused[part] = ""
            else:
                self.raw[part] = traceback.format_exc()
        return None


def digest(value: Any) -> str:
    found = hashlib.sha256()
    _update(found, value)
    return found.hexdigest()


def _update(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        found.update(f"{value.dtype} {value.shape}".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, dict):
        _update(found, list(value.items()))
    elif isinstance(value, list | tuple):
        found.update(f"{len(value)} of".encode())
        for item in value:
            _update(found, item)
    else:
        found.update(ascii(value).encode())


def see(root: Path) -> Seen:
    """Open, and read all there is in every way; text columns and keys by iteration, by number, and in batches."""
    seen = Seen()
    everything = seen.read("open", lambda: CompiledDataset(root))
    seen.read("earlier", lambda: list(CompiledDataset(root, generation=GENERATIONS[0])))
    seen.read("generations", lambda: list_generations(root)[:0])
    if everything is not None:
        seen.read("facts", lambda: facts(everything))
        seen.read("keys", lambda: list(everything.keys))
        seen.read("targets", lambda: everything.targets)
        seen.read("columns", lambda: [columns_of(everything), everything.classes])
        seen.read("samples", lambda: [everything[index] for index in range(len(everything))])
        seen.read("collated", lambda: everything.collate(everything.__getitems__([3, 1, -1])))
        seen.read("arrays", lambda: [everything.stored.arrays(index) for index in range(len(everything))])
        seen.read("epoch", lambda: list(Loader(everything, 5, shuffle=True, seed=3)))
        seen.read("split", lambda: list(Loader(CompiledDataset(root, split="val"), 3)))
    return seen


def facts(dataset: CompiledDataset) -> Any:
    splits = [(split.name, split.start, split.count) for split in dataset.manifest.splits]
    return len(dataset), splits, dataset.schema.to_json(), dataset.classes


def columns_of(dataset: CompiledDataset) -> list[Any]:
    columns = {spec.name: dataset.column(spec.name) for spec in dataset.schema.columns}
    return [(name, c.copy() if isinstance(c, np.ndarray) else [list(c), c[0], c[-1]]) for name, c in columns.items()]


@dataclass(frozen=True)
class Verdict:
    """What became of a case."""

    outcome: str
    """`right`, `refused` (by an error that names a file) or `reported` (wrong data, which verify found)."""
    problem: str
    """What is wrong with the readers, or nothing."""


def judge(case: Case, root: Path, expected: dict[int, dict[str, str]]) -> Verdict:
    """expected: digests by part, of every generation of the undamaged dataset."""
    seen, findings = see(root), Seen()
    found = findings.read("verify", lambda: verify(root, full=True))
    findings.read("quarantine", lambda: len(read_quarantine(generation_dir(root, GENERATIONS[-1]) / QUARANTINE_NAME)))
    problem = "".join([*seen.raw.values(), *findings.raw.values()])
    names = [str(root), *(Path(path).name for path in case.paths)]
    for part, message in seen.refused.items():
        if message and not any(name in message for name in names):
            problem += f"{part}: the message names no file: {message}\n"
    wrong = not any(seen.values.items() <= values.items() for values in expected.values())
    if wrong and not found and "verify" not in findings.refused:
        problem += f"wrong data, and verify(full=True) finds nothing: read were {', '.join(seen.values)}\n"
    return Verdict("reported" if wrong else "refused" if seen.refused else "right", problem)
