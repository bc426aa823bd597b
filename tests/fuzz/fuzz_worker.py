"""Runs cases in a process of its own, so that a crash, a hang or a huge allocation is a failure of one case.

    fuzz_worker.py PRISTINE HOME START STOP STEP

Prints `begin N` before each case, and one line of JSON after it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import shutil
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

from fuzz_damage import damage, restore, write_new
from fuzz_datasets import GENERATIONS, kind_of
from fuzz_read import Seen, judge, see

from precompile.format.generation import generation_dir
from precompile.pipeline.verify import verify

_SECONDS_PER_CASE = 60
_MORE_BYTES = 1 << 30


def limit_memory() -> None:
    """A gigabyte more than what is mapped now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def copy(pristine: Path, root: Path) -> dict[int, dict[str, str]]:
    """A copy to damage, and the digests of what it gives undamaged, by generation."""
    shutil.copytree(pristine, root, copy_function=os.link)
    found: dict[int, dict[str, str]] = {}
    for generation in GENERATIONS:
        write_new(root / "manifest.json", (generation_dir(root, generation) / "manifest.json").read_bytes())
        seen: Seen = see(root)
        assert not seen.refused, seen.refused
        assert not seen.raw, seen.raw
        assert verify(root, full=True) == []
        found[generation] = seen.values
    return found


def run(pristine: Path, home: Path, numbers: range) -> None:
    kinds = sorted({kind_of(number) for number in numbers})
    expected = {kind: copy(pristine / kind, home / kind) for kind in kinds}
    limit_memory()
    for number in numbers:
        print("begin", number, flush=True)
        faulthandler.dump_traceback_later(_SECONDS_PER_CASE, exit=True)
        kind = kind_of(number)
        restore(home / kind, pristine / kind)
        case = damage(number, home, pristine)
        verdict = judge(case, home / kind, expected[kind])
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"number": number, "kind": kind, "case": str(case), **asdict(verdict)}), flush=True)


if __name__ == "__main__":
    faulthandler.enable()
    warnings.simplefilter("error")
    run(Path(sys.argv[1]), Path(sys.argv[2]), range(*map(int, sys.argv[3:6])))
