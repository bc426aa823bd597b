"""Machines are folders here: /proc and /sys trees written under tmp_path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precompile import machine
from precompile.machine import CpuLimits, MemoryLimits

GIB = 2**30
V1_NO_LIMIT = "9223372036854771712\n"
MEMINFO = f"MemTotal:       {64 * 2**20} kB\nMemFree:         {2**20} kB\nMemAvailable:   {48 * 2**20} kB\n"

Tree = Callable[[dict[str, str]], Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Writes files, given by their path from the root, and returns the root."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return tmp_path

    return write


def cpus(root: Path, *, affinity: int = 16, os_count: int = 64, **environ: str) -> CpuLimits:
    return machine.cpus(root=root, environ=environ, affinity=affinity, os_count=os_count)


# CPUs


def test_without_cgroup_files_the_affinity_counts(tmp_path: Path) -> None:
    assert cpus(tmp_path) == CpuLimits(os_count=64, affinity=16, cgroup_quota=None, slurm=None, usable=16)


@pytest.mark.parametrize(
    ("cpu_max", "quota", "usable"),
    [
        ("max 100000\n", None, 16),
        ("max\n", None, 16),
        ("150000 100000\n", 1.5, 1),
        ("50000 100000\n", 0.5, 1),
        ("250000 100000\n", 2.5, 2),
        ("200000 50000\n", 4.0, 4),
        ("9900000 100000\n", 99.0, 16),
        ("", None, 16),
        ("nonsense", None, 16),
    ],
)
def test_quota_of_cgroup_v2(tree: Tree, cpu_max: str, quota: float | None, usable: int) -> None:
    root = tree({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": cpu_max})
    limits = cpus(root)
    assert (limits.cgroup_quota, limits.usable) == (quota, usable)


@pytest.mark.parametrize("tight", ["", "outer/", "outer/middle/", "outer/middle/inner/"])
def test_the_tightest_of_nested_v2_groups_counts(tree: Tree, tight: str) -> None:
    files = {
        f"sys/fs/cgroup/{group}cpu.max": "800000 100000\n"
        for group in ("", "outer/", "outer/middle/", "outer/middle/inner/")
    }
    files[f"sys/fs/cgroup/{tight}cpu.max"] = "300000 100000\n"
    assert cpus(tree(files | {"proc/self/cgroup": "0::/outer/middle/inner\n"})).usable == 3


def test_a_group_beside_the_path_does_not_count(tree: Tree) -> None:
    root = tree({
        "proc/self/cgroup": "0::/mine\n",
        "sys/fs/cgroup/mine/cpu.max": "max 100000\n",
        "sys/fs/cgroup/other/cpu.max": "100000 100000\n",
    })  # fmt: skip
    assert cpus(root).cgroup_quota is None


@pytest.mark.parametrize("path", ["/docker/0123", "/../../outside", "/a (deleted)"])
def test_a_path_that_the_container_does_not_show_means_the_root_of_its_mount(tree: Tree, path: str) -> None:
    root = tree({
        "proc/self/cgroup": f"0::{path}\n",
        "sys/fs/cgroup/cpu.max": "200000 100000\n",
        "sys/outside/cpu.max": "100000 100000\n",
    })  # fmt: skip
    assert cpus(root).usable == 2


@pytest.mark.parametrize(
    ("quota_us", "quota", "usable"),
    [("-1", None, 16), ("150000", 1.5, 1), ("50000", 0.5, 1), ("250000", 2.5, 2), ("400000", 4.0, 4)],
)
@pytest.mark.parametrize(
    ("controllers", "mount"),
    [("cpu,cpuacct", "cpu,cpuacct"), ("cpu,cpuacct", "cpu"), ("cpu", "cpu"), ("cpuacct,cpu", "cpuacct,cpu")],
)
def test_quota_of_cgroup_v1(
    tree: Tree, controllers: str, mount: str, quota_us: str, quota: float | None, usable: int
) -> None:
    root = tree({
        "proc/self/cgroup": f"5:memory:/m\n4:{controllers}:/job\n3:cpuset:/\n1:name=systemd:/\n",
        f"sys/fs/cgroup/{mount}/job/cpu.cfs_quota_us": f"{quota_us}\n",
        f"sys/fs/cgroup/{mount}/job/cpu.cfs_period_us": "100000\n",
    })  # fmt: skip
    limits = cpus(root)
    assert (limits.cgroup_quota, limits.usable) == (quota, usable)


def test_nested_v1_groups_and_a_path_that_is_absent(tree: Tree) -> None:
    root = tree({
        "proc/self/cgroup": "4:cpu,cpuacct:/kubepods/pod1/container\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "600000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    })  # fmt: skip
    assert cpus(root).usable == 6
    tree({
        "sys/fs/cgroup/cpu,cpuacct/kubepods/cpu.cfs_quota_us": "300000\n",
        "sys/fs/cgroup/cpu,cpuacct/kubepods/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/kubepods/pod1/container/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/kubepods/pod1/container/cpu.cfs_period_us": "100000\n",
    })  # fmt: skip
    assert cpus(root).usable == 3


def test_hybrid_hierarchies_are_both_read(tree: Tree) -> None:
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/one\n0::/two\n",
        "sys/fs/cgroup/cpu,cpuacct/one/cpu.cfs_quota_us": "500000\n",
        "sys/fs/cgroup/cpu,cpuacct/one/cpu.cfs_period_us": "100000\n",
    }
    assert cpus(tree(files)).usable == 5
    assert cpus(tree({"sys/fs/cgroup/unified/two/cpu.max": "200000 100000\n"})).usable == 2


def test_affinity_below_the_quota_counts(tree: Tree) -> None:
    root = tree({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "800000 100000\n"})
    assert cpus(root, affinity=3).usable == 3


@pytest.mark.parametrize(
    ("value", "slurm", "usable"),
    [
        ("4", 4, 4),
        (" 4 ", 4, 4),
        ("99", 99, 16),
        ("0", None, 16),
        ("-2", None, 16),
        ("4(x2)", None, 16),
        ("", None, 16),
    ],
)
def test_slurm_cpus_per_task(tmp_path: Path, value: str, slurm: int | None, usable: int) -> None:
    limits = cpus(tmp_path, SLURM_CPUS_PER_TASK=value)
    assert (limits.slurm, limits.usable) == (slurm, usable)


@given(text=st.text())
def test_no_content_of_the_environment_is_an_error(text: str) -> None:
    limits = machine.cpus(root=Path("/nonexistent"), environ={"SLURM_CPUS_PER_TASK": text}, affinity=8, os_count=8)
    assert 1 <= limits.usable <= 8


def test_this_process_has_at_least_one_cpu_and_no_more_than_the_system() -> None:
    assert 1 <= machine.usable_cpus() <= (os.cpu_count() or 1)


# memory


def test_without_cgroups_the_host_memory_counts(tree: Tree) -> None:
    assert machine.memory(root=tree({"proc/meminfo": MEMINFO})) == MemoryLimits(64 * GIB, None, None, 48 * GIB)


def test_memory_without_proc_is_that_of_the_machine(tmp_path: Path) -> None:
    limits = machine.memory(root=tmp_path)
    assert limits.total_bytes == limits.available_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_memory_of_cgroup_v2_counts_droppable_file_cache_as_available(tree: Tree) -> None:
    root = tree({
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/job\n",
        "sys/fs/cgroup/job/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/job/memory.current": f"{6 * GIB}\n",
        "sys/fs/cgroup/job/memory.stat": f"anon {GIB}\nactive_file {GIB}\ninactive_file {3 * GIB}\n",
    })  # fmt: skip
    assert machine.memory(root=root) == MemoryLimits(64 * GIB, 8 * GIB, 6 * GIB, 5 * GIB)


def test_memory_of_cgroup_v1_takes_the_rows_that_include_the_groups_below(tree: Tree) -> None:
    group = "sys/fs/cgroup/memory/job"
    root = tree({
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "9:memory:/job\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_NO_LIMIT,
        f"{group}/memory.limit_in_bytes": f"{4 * GIB}\n",
        f"{group}/memory.usage_in_bytes": f"{3 * GIB}\n",
        f"{group}/memory.stat": f"inactive_file 4096\ntotal_inactive_file {GIB}\n",
    })  # fmt: skip
    assert machine.memory(root=root) == MemoryLimits(64 * GIB, 4 * GIB, 3 * GIB, 2 * GIB)


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "5\n"},
        {"proc/self/cgroup": "9:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_NO_LIMIT},
    ],
)
def test_no_memory_limit(tree: Tree, files: dict[str, str]) -> None:
    limits = machine.memory(root=tree(files | {"proc/meminfo": MEMINFO}))
    assert (limits.cgroup_limit_bytes, limits.cgroup_used_bytes, limits.available_bytes) == (None, None, 48 * GIB)


def test_an_outer_group_filled_by_siblings_leaves_less_room_than_the_inner_limit(tree: Tree) -> None:
    root = tree({
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/pod/me\n",
        "sys/fs/cgroup/pod/memory.max": f"{16 * GIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{15 * GIB}\n",
        "sys/fs/cgroup/pod/me/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/pod/me/memory.current": f"{1 * GIB}\n",
    })  # fmt: skip
    assert machine.memory(root=root) == MemoryLimits(64 * GIB, 8 * GIB, 1 * GIB, 1 * GIB)


def test_a_container_whose_memory_group_is_absent_has_the_limit_of_its_mount(tree: Tree) -> None:
    root = tree({
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "9:memory:/docker/0123\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
    })  # fmt: skip
    assert machine.memory(root=root) == MemoryLimits(64 * GIB, 2 * GIB, 3 * GIB, 0)


def test_a_limit_above_the_host_memory_does_not_raise_it(tree: Tree) -> None:
    root = tree({
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{500 * GIB}\n",
        "sys/fs/cgroup/memory.current": "0\n",
    })  # fmt: skip
    assert machine.memory(root=root).available_bytes == 48 * GIB


# file systems

MOUNTS = r"""22 1 0:21 / /proc rw - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 27 0:30 / /nowhere/my\040data rw shared:1 master:2 - nfs4 server:/my\040data rw
29 27 0:31 / /nowhere/my\040data/ram rw - tmpfs tmpfs rw
30 27 0:32 / /nowhere/tw\134ice rw - ext4 /dev/vdb rw
31 27 0:33 / /nowhere/tw\134ice rw - tmpfs tmpfs rw
32 27 0:34 / /nowhere/remote rw - fuse.s3fs s3fs rw
33 27 0:35 / /nowhere/layers rw - fuse.fuse-overlayfs overlay rw
34 27 0:36 / /nowhere/image rw - overlay overlay rw
a line that is cut
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/nowhere", "ext4", False),
        ("/nowhere/my data", "nfs4", True),
        ("/nowhere/my data/a/b.jpg", "nfs4", True),
        ("/nowhere/my database", "ext4", False),
        ("/nowhere/my data/ram/x", "tmpfs", False),
        ("/nowhere/my data/ram/../x", "nfs4", True),
        ("/nowhere/tw\\ice/x", "tmpfs", False),
        ("/nowhere/remote/x", "fuse.s3fs", True),
        ("/nowhere/layers/x", "fuse.fuse-overlayfs", False),
        ("/nowhere/image/x", "overlay", False),
    ],
)
def test_filesystem_is_that_of_the_longest_mount_point(tree: Tree, path: str, kind: str, network: bool) -> None:
    root = tree({"proc/self/mountinfo": MOUNTS})
    assert machine.filesystem(Path(path), root=root) == kind
    assert machine.is_network(Path(path), root=root) is network
    assert machine.is_tmpfs(Path(path), root=root) is (kind == "tmpfs")


def test_filesystem_follows_symbolic_links(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/nowhere/remote")
    root = tree({"proc/self/mountinfo": MOUNTS})
    assert machine.filesystem(tmp_path / "link" / "x", root=root) == "fuse.s3fs"


def test_filesystem_without_mountinfo_is_unknown(tmp_path: Path) -> None:
    assert machine.filesystem(tmp_path, root=tmp_path) == "unknown"
    assert not machine.is_network(tmp_path, root=tmp_path)


def test_free_bytes_of_a_path_that_is_yet_to_be_made_is_that_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def statvfs(path: Path) -> os.statvfs_result:
        asked.append(path)
        return os.statvfs_result((4096, 512, 100, 50, 40, 0, 0, 0, 0, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert machine.free_bytes(tmp_path / "a" / "b") == 40 * 512
    assert asked == [tmp_path.resolve()]


def test_importing_machine_imports_no_other_library() -> None:
    code = "import sys, precompile.machine; print(sorted({'torch', 'numpy', 'psutil'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
