"""What on this machine will slow training down, hang it or kill it. Each check is one function that says what to do."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import resource
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, get_args

from precompile import machine
from precompile.errors import DatasetNotFoundError, FormatError, RecipeError
from precompile.format.schema import ARRAY_DTYPES, Schema

Status = Literal["ok", "warn", "fail"]
GIB = 2**30
PREFETCH = 2
"""Batches that torch's DataLoader keeps ready per worker (its default prefetch_factor)."""
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",), "torchaudio": ("torchaudio",), "numpy": ("numpy",), "pillow": ("pillow",),
    "opencv": ("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python"),
    "soundfile": ("soundfile",), "lmdb": ("lmdb",),
}  # fmt: skip
"""The distributions that provide each library; the first is the one to install."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: what was looked at, what was found, and what to do (empty when it is ok)."""

    name: str
    status: Status
    """`fail`: it will not work. `warn`: it can be slow, hang or be killed."""
    value: str
    advice: str = ""

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise ValueError(f"status must be one of {', '.join(get_args(Status))}, got status={self.status!r}")


def doctor(*, dataset: Path | None = None, batch_size: int | None = None, workers: int | None = None) -> list[Check]:
    """Look at this machine, and at how `workers` processes would read `dataset` (a compiled one) in batches.

    Takes seconds: torch and torchaudio are imported in a process of its own. Raises RecipeError for a number out of
    range, DatasetNotFoundError or FormatError when `dataset` cannot be read.
    """
    for name, number, least in ("batch_size", batch_size, 1), ("workers", workers, 0):
        if number is not None and number < least:
            raise RecipeError(f"{name} must be at least {least}, got {name}={number}")
    sample = sample_bytes(dataset) if dataset is not None else None
    needed = None
    if sample is not None and batch_size is not None and workers is not None:
        needed = sample * batch_size * workers * PREFETCH
    limits, facts, shm = machine.cpus(), torch_facts(), Path("/dev/shm")
    return [
        check_cpus(limits),
        check_memory(machine.memory()),
        check_shared_memory(machine.free_bytes(shm) if machine.is_tmpfs(shm) else 0, needed),
        check_threads(os.environ, int(facts.get("threads", 0)), workers, limits.usable),
        check_start_method(multiprocessing.get_start_method(allow_none=True)),
        check_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        check_max_map_count(),
        *([check_filesystem(dataset)] if dataset is not None else []),
        *[check_package(name) for name in PACKAGES],
        check_torch_family(facts),
    ]


def as_json(checks: Iterable[Check]) -> dict[str, list[dict[str, str]]]:
    """`{"checks": [{"name": …, "status": …, "value": …, "advice": …}, …]}`"""
    return {"checks": [asdict(check) for check in checks]}


def sample_bytes(dataset: Path) -> int | None:
    """Bytes of the array fields of one sample, as far as their shape is known; None when no shape is."""
    file = Path(dataset) / "manifest.json"
    try:
        schema = Schema.from_json(json.loads(file.read_text(encoding="utf-8"))["schema"])
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(f"{dataset}: no compiled dataset, for it has no manifest.json") from None
    except (ValueError, KeyError, TypeError, FormatError) as error:
        raise FormatError(f"{file}: not a manifest: {error!r}") from error
    known = sum(ARRAY_DTYPES[spec.dtype] * math.prod(size or 0 for size in spec.shape) for spec in schema.arrays)
    return known or None


def check_cpus(limits: machine.CpuLimits) -> Check:
    parts = {"affinity": limits.affinity, "cgroup quota": limits.cgroup_quota, "Slurm": limits.slurm}
    granted = ", ".join(f"{name} {count:g}" for name, count in parts.items() if count is not None)
    value = f"{limits.usable} usable of {limits.os_count} ({granted})"
    advice = f"os.cpu_count() says {limits.os_count} here: set workers x threads to {limits.usable} yourself"
    return _judge("CPUs", limits.usable == limits.os_count, value, advice)


def check_memory(limits: machine.MemoryLimits) -> Check:
    limit = _size(limits.cgroup_limit_bytes) if limits.cgroup_limit_bytes is not None else "none"
    value = f"{_size(limits.available_bytes)} available of {_size(limits.total_bytes)}, container limit {limit}"
    advice = "a process that needs more is killed: raise the limit or free memory (files on a RAM disk count)"
    return _judge("memory", limits.available_bytes >= GIB, value, advice)


def check_shared_memory(free: int, needed: int | None) -> Check:
    """free: bytes in /dev/shm, 0 where it is no RAM disk. needed: bytes of all batches in flight, None if unknown."""
    advice = "start the container with a larger --shm-size (Kubernetes: emptyDir with medium Memory), or use workers=0"
    if needed is None:  # Docker's default of 64 MiB ends ordinary workers with a bus error
        return _judge("/dev/shm", free >= GIB, f"{_size(free)} free", advice)
    value = f"{_size(free)} free, the batches of all workers need {_size(needed)} or more"
    return _judge("/dev/shm", free >= needed, value, advice, otherwise="fail")


def check_threads(environ: Mapping[str, str], torch_threads: int, workers: int | None, cpus: int) -> Check:
    """N workers x K threads, K by the library that starts the most, against the CPUs; and whether idle threads spin."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY")
    settings = ", ".join(f"{name}={environ.get(name, 'unset')}" for name in names)
    counts = [environ.get(name, "").split(",")[0].strip() for name in names[:3]]  # OpenMP: one count per nesting level
    threads = max([1, torch_threads, *(int(count) for count in counts if count.isdecimal())])
    processes = max(1, workers or 0)
    value = f"{processes} x {threads} threads on {cpus} CPUs (torch={torch_threads}, {settings})"
    if environ.get("OMP_WAIT_POLICY", "").strip().lower() == "active":
        return Check("threads", "warn", value, "idle OpenMP threads spin and take the CPUs: unset OMP_WAIT_POLICY")
    remedy = f"export OMP_NUM_THREADS={cpus // processes}" if processes <= cpus else f"use at most {cpus} workers"
    advice = f"{remedy}, so that a worker has one thread; or compile ahead of time, so that workers only copy memory"
    return _judge("threads", processes * threads <= cpus, value, advice)


def check_start_method(method: str | None) -> Check:
    """method: None where none was chosen, which means the platform's default."""
    method = method or multiprocessing.get_all_start_methods()[0]
    advice = (
        "reading a compiled dataset is safe, but a transform that uses torch or OpenCV threads in a forked worker can "
        "hang: DataLoader(multiprocessing_context='forkserver'), or workers=0"
    )
    return _judge("start method", method != "fork", method, advice)


def check_open_files(soft: int, hard: int) -> Check:
    shown = ["unlimited" if limit == resource.RLIM_INFINITY else str(limit) for limit in (soft, hard)]
    advice = f"workers hold a file per shared tensor: ulimit -n {shown[1]}"
    return _judge("open files", soft >= 4096 or soft == resource.RLIM_INFINITY, f"{shown[0]} of {shown[1]}", advice)


def check_max_map_count(*, root: Path = machine.ROOT) -> Check:
    """Memory maps per process; 65530 is the kernel's default."""
    file = root / "proc/sys/vm/max_map_count"
    count = file.read_text().strip() if file.exists() else ""
    return _judge("memory maps", not count or int(count) >= 65530, count or "unknown", "sysctl vm.max_map_count=65530")


def check_filesystem(dataset: Path, *, root: Path = machine.ROOT) -> Check:
    advice = "every epoch reads over the network: copy the dataset to a local disk or to /dev/shm"
    value = f"{machine.filesystem(dataset, root=root)}, {_size(machine.free_bytes(dataset))} free"
    return _judge("dataset storage", not machine.is_network(dataset, root=root), value, advice)


def check_package(name: str) -> Check:
    """Whether a library is installed, from its metadata: nothing is imported. `name`: a key of PACKAGES."""
    found = []
    for distribution in PACKAGES[name]:
        try:
            found.append(f"{metadata.version(distribution)} ({distribution})")
        except metadata.PackageNotFoundError:
            continue
    return _judge(name, bool(found), ", ".join(found) or "not installed", f"pip install {PACKAGES[name][0]}", "fail")


def torch_facts(timeout_seconds: float = 120) -> dict[str, str]:
    """`torch` and `torchaudio` (versions), `threads`, `error`: as far as imports go in a process that may crash."""
    code = (
        "import torch, numpy; torch.from_numpy(numpy.zeros(1))\n"
        "print('fact torch', torch.__version__); print('fact threads', torch.get_num_threads(), flush=True)\n"
        "import torchaudio; print('fact torchaudio', torchaudio.__version__)"
    )
    try:
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout_seconds:g} seconds"}
    facts = dict(line.split()[1:3] for line in run.stdout.splitlines() if line.startswith("fact "))
    if run.returncode:
        facts["error"] = (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
    return facts


def check_torch_family(facts: Mapping[str, str]) -> Check:
    """Whether torch works with numpy and torchaudio, all of one kind of build; `facts` as of torch_facts()."""
    value = ", ".join(f"{name} {facts[name]}" for name in ("torch", "torchaudio", "error") if name in facts)
    mixed = "+cpu" in facts.get("torch", "") and "+cpu" not in facts.get("torchaudio", "")
    advice = "install all from one index, such as pip install --index-url https://download.pytorch.org/whl/cpu (no GPU)"
    return _judge("torch, numpy, torchaudio", "error" not in facts and not mixed, value, advice, "fail")


def _judge(name: str, good: bool, value: str, advice: str, otherwise: Status = "warn") -> Check:
    return Check(name, "ok", value) if good else Check(name, otherwise, value, advice)


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"
