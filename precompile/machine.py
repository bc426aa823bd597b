"""What this container really has: CPUs, memory, file systems. The host's numbers mislead; cgroups set the limits.

Standard library only. `root` is the folder that has `proc` and `sys`, so that a folder can stand for a machine.
Formats: proc(5) for `cgroup`, `meminfo` and `mountinfo`; the kernel's admin-guide, `cgroup-v2` and `cgroup-v1/memory`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
NO_LIMIT = 2**60
"""Bytes. cgroup v1 writes "no limit" as the largest multiple of a page below 2^63; nothing real is this large."""

NETWORK_FILESYSTEMS = frozenset((
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs", "panfs",
    "pvfs2", "smb3", "smbfs", "wekafs",
))  # fmt: skip
LOCAL_FUSE = frozenset(
    ("bindfs", "encfs", "fuse-overlayfs", "gocryptfs", "mergerfs", "ntfs-3g", "squashfuse", "unionfs")
)
"""`fuse.<name>` that keep their bytes on this machine; all others (sshfs, s3fs, gcsfuse, …) are taken for a network."""


@dataclass(frozen=True, slots=True)
class CpuLimits:
    """How many CPUs each authority grants; None where it says nothing."""

    os_count: int
    """What os.cpu_count() reports: usually all CPUs of the host."""
    affinity: int
    """CPUs this process may be scheduled on (taskset, cpuset, Slurm)."""
    cgroup_quota: float | None
    """CPU seconds per second: the tightest quota of this cgroup and the groups around it. May be a fraction."""
    slurm: int | None
    """SLURM_CPUS_PER_TASK."""
    usable: int
    """The smallest of the above, the quota rounded down; at least 1."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Memory in bytes; None where no cgroup sets a limit."""

    total_bytes: int
    """RAM of the host."""
    cgroup_limit_bytes: int | None
    """The tightest limit of this cgroup and the groups around it."""
    cgroup_used_bytes: int | None
    """What the group with that limit is charged for: page cache and files on a tmpfs included."""
    available_bytes: int
    """What can be allocated without swapping or being killed; file cache that can be dropped counts as available."""


def cpus(
    *,
    root: Path = ROOT,
    environ: Mapping[str, str] = os.environ,
    affinity: int | None = None,
    os_count: int | None = None,
) -> CpuLimits:
    """The CPUs of this process. `affinity` and `os_count` replace what the system reports."""
    if os_count is None:
        os_count = os.cpu_count() or 1
    if affinity is None:
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os_count
    quotas = [quota for folder in cgroup_folders("cpu", root) if (quota := _cpu_quota(folder)) is not None]
    quota = min(quotas, default=None)
    slurm = _integer(environ.get("SLURM_CPUS_PER_TASK")) or None
    known = (os_count, affinity, quota, slurm)
    usable = max(1, math.floor(min(count for count in known if count is not None)))
    return CpuLimits(os_count, affinity, quota, slurm, usable)


def usable_cpus() -> int:
    """How many threads this process can run at once; at least 1. Use it instead of os.cpu_count()."""
    return cpus().usable


def memory(*, root: Path = ROOT) -> MemoryLimits:
    """The memory of this process. Without /proc/meminfo (not Linux), all physical memory counts as available."""
    info = _table(root / "proc/meminfo", scale=1024)
    total = info.get("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    groups = [group for folder in cgroup_folders("memory", root) if (group := _memory_of_group(folder)) is not None]
    limit, used = min(groups)[:2] if groups else (None, None)
    # Siblings share the outer groups, so the group with the least room need not be the one with the smallest limit.
    available = min(info.get("MemAvailable", total), *(room for _, _, room in groups), total)
    return MemoryLimits(total, limit, used, available)


def filesystem(path: Path, *, root: Path = ROOT) -> str:
    """The type of the file system that holds `path`, or would hold it: `ext4`, `tmpfs`, `overlay`, `fuse.sshfs`, …

    Symbolic links are followed. `unknown` where there is no /proc/self/mountinfo.
    """
    path = Path(path).resolve()
    found, kind = -1, "unknown"
    for line in (_read(root / "proc/self/mountinfo") or "").split("\n"):
        mount, _, source = line.partition(" - ")
        columns = mount.split(" ")
        if len(columns) < 6 or not source:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), columns[4]))
        # `>=`: of two mounts on one point, the later hides the earlier.
        if path.is_relative_to(point) and len(point.parts) >= found:
            found, kind = len(point.parts), source.split(" ")[0]
    return kind


def is_tmpfs(path: Path, *, root: Path = ROOT) -> bool:
    """Whether `path` lies, or would lie, on a RAM disk."""
    return filesystem(path, root=root) == "tmpfs"


def is_network(path: Path, *, root: Path = ROOT) -> bool:
    """Whether `path` lies, or would lie, on a file system that reads over a network."""
    kind = filesystem(path, root=root)
    return kind in NETWORK_FILESYSTEMS or (kind.startswith("fuse.") and kind.removeprefix("fuse.") not in LOCAL_FUSE)


def free_bytes(path: Path) -> int:
    """Bytes that an ordinary user can still write where `path` lies, or would lie.

    On a tmpfs the memory limit of the container may be tighter: compare with `memory().available_bytes`.
    """
    path = Path(path).resolve()
    while not os.path.exists(path):
        path = path.parent
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def cgroup_folders(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's cgroup and of the groups around it, innermost first; v2, v1 or both (hybrid).

    A container's mount may not show its path: those folders hold no files, and the walk ends at the container's group.
    """
    base = root / "sys/fs/cgroup"
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if line.startswith("0::"):
            mounts = {base, base / "unified"}
        elif controller in controllers.split(","):
            mounts = {base / controllers, base / controller}
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        if ".." in group.parts:  # a group outside of this namespace: not to be seen from here
            group = PurePosixPath()
        for mount in mounts:
            for folder in (group, *group.parents):
                yield mount / folder


def _cpu_quota(folder: Path) -> float | None:
    quota, period = [*(_read(folder / "cpu.max") or "").split(), "", ""][:2]
    if not quota:
        quota, period = _read(folder / "cpu.cfs_quota_us") or "", _read(folder / "cpu.cfs_period_us") or ""
    allowed, window = _integer(quota), _integer(period)
    return allowed / window if allowed and window else None


def _memory_of_group(folder: Path) -> tuple[int, int, int] | None:
    """(limit, used, room) in bytes, or None where the group has no limit."""
    limit = _integer(_read(folder / "memory.max"))
    used = _integer(_read(folder / "memory.current"))
    if limit is None:
        limit = _integer(_read(folder / "memory.limit_in_bytes"))
        used = _integer(_read(folder / "memory.usage_in_bytes"))
    if limit is None or limit >= NO_LIMIT:
        return None
    used = used or 0
    stat = _table(folder / "memory.stat")
    # v1 counts the groups below only in the `total_` rows; v2 counts them always.
    reclaimable = stat.get("total_inactive_file", stat.get("inactive_file", 0))
    return limit, used, max(0, limit - used + min(used, reclaimable))


def _table(path: Path, *, scale: int = 1) -> dict[str, int]:
    """Lines `name number` or `name: number kB`."""
    rows = re.findall(r"^(\w+):?\s+(\d+)", _read(path) or "", re.MULTILINE)
    return {name: int(number) * scale for name, number in rows}


def _integer(text: str | None) -> int | None:
    """A number of decimal digits; None for what says "no limit" (`max`, `-1`), for garbage and for nothing."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
