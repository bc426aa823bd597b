"""What the kernel says about processes: state, CPU time, and where one waits. Formats: proc(5).

`root` is the folder that has `proc`, so that a folder can stand for a machine. Nothing here raises for a process that
is gone or belongs to somebody else: it says less.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_PATH_ARGUMENT = {"x86_64": {2: 0, 4: 0, 6: 0, 21: 0, 257: 1, 262: 1, 332: 1}, "aarch64": {56: 1, 79: 1, 291: 1}}
"""System calls that take a path (open, stat, lstat, access, openat, newfstatat, statx), and which argument it is."""
_FD_CALLS = {"x86_64": {0, 5, 17, 19, 217}, "aarch64": {61, 63, 65, 67, 80}}
"""System calls that read the file of their first argument: read, fstat, pread, readv, getdents64."""
_MAX_PATH_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One look at a process, or at one thread of it."""

    letter: str
    """R running, S sleeping, D waiting for a disk, T stopped, t traced, Z dead and not waited for, X gone."""
    cpu_seconds: float = 0.0
    """Since it began."""
    num_threads: int = 0
    exit_code: int | None = None
    """Of a dead one; negative: the signal that ended it."""
    parent: int = 0


GONE = ProcessState("X")
UNKNOWN = ProcessState("?")
"""Where there is no /proc."""


def state_of(pid: int, *, root: Path = ROOT) -> ProcessState:
    """The state of a process, without where it waits."""
    text = _read(root / f"proc/{pid}/stat")
    if ") " not in text:
        return GONE if (root / "proc").is_dir() else UNKNOWN
    columns = text.rpartition(") ")[2].split()  # the name in parentheses may have spaces and parentheses
    ticks = int(columns[11]) + int(columns[12])
    code = os.waitstatus_to_exitcode(int(columns[49])) if columns[0] in "ZX" and len(columns) > 49 else None
    per_second = os.sysconf("SC_CLK_TCK")
    return ProcessState(columns[0], ticks / per_second, int(columns[17]), code, int(columns[1]))


def where_it_waits(pid: int, thread: int, *, root: Path = ROOT) -> tuple[str, str, str]:
    """(kernel function, library, file) of a thread's wait; each may be empty. May hang where its memory is in use."""
    folder = root / f"proc/{pid}/task/{thread}"
    kernel_function = _read(folder / "wchan").strip()
    if kernel_function == "0":
        kernel_function = ""
    columns = _read(folder / "syscall").split()
    if len(columns) < 3 or not columns[-1].startswith("0x"):  # `running`, or not for us to see
        return kernel_function, "", ""
    library = _library_at(int(columns[-1], 16), _read(root / f"proc/{pid}/maps"))
    return kernel_function, library, _file_of(pid, columns, root)


def _library_at(address: int, maps: str) -> str:
    for line in maps.splitlines():
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+\s*(.*)", line)
        if found and int(found[1], 16) <= address < int(found[2], 16):
            return os.path.basename(found[3])
    return ""


def _file_of(pid: int, columns: Sequence[str], root: Path) -> str:
    machine = os.uname().machine
    call, arguments = int(columns[0]), columns[1:-2]
    if call in _FD_CALLS.get(machine, ()) and arguments:
        return _link(root / f"proc/{pid}/fd/{int(arguments[0], 16)}")
    which = _PATH_ARGUMENT.get(machine, {}).get(call)
    if which is None or which >= len(arguments):
        return ""
    try:
        with open(root / f"proc/{pid}/mem", "rb", buffering=0) as memory:
            # A path may end right before memory that is not there.
            address = int(arguments[which], 16)
            page_left = 4096 - address % 4096
            data = os.pread(memory.fileno(), page_left, address)
            if b"\0" not in data:
                data += os.pread(memory.fileno(), _MAX_PATH_BYTES, address + page_left)
    except (OSError, OverflowError):
        return ""
    return os.fsdecode(data.partition(b"\0")[0])


def cpu_shares(pids: Sequence[int], seconds: float, *, root: Path = ROOT) -> dict[int, float]:
    """How many CPUs each process used in that time, which this call waits for: 1.0 is one whole CPU."""
    before, began = {pid: state_of(pid, root=root).cpu_seconds for pid in pids}, time.monotonic()
    time.sleep(seconds)
    after, ended = {pid: state_of(pid, root=root).cpu_seconds for pid in pids}, time.monotonic()
    return {pid: max(0.0, after[pid] - before[pid]) / max(ended - began, 1e-3) for pid in pids}


def descendants(pid: int, *, root: Path = ROOT) -> list[int]:
    """Children, their children and so on, as far as they are seen in /proc, the near ones first."""
    children: dict[int, list[int]] = {}
    for number in _numbers(root / "proc"):
        children.setdefault(state_of(number, root=root).parent, []).append(number)
    found = [pid]
    for parent in found:  # grows
        found += (child for child in children.get(parent, ()) if child not in found)
    return found[1:]


def command_of(pid: int, *, root: Path = ROOT) -> str:
    """The command line; empty for the dead."""
    return _read(root / f"proc/{pid}/cmdline").replace("\0", " ").strip()


def name_of(pid: int, *, root: Path = ROOT) -> str:
    return _read(root / f"proc/{pid}/comm").strip()


def mount_type(path: str, *, root: Path = ROOT) -> str:
    """The type of the file system at a path, by its text alone: nothing is asked of a file system that may hang."""
    found, kind = "", "unknown"
    for line in _read(root / "proc/self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        columns = mount.split(" ")
        if len(columns) < 6 or not source:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), columns[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found):
            found, kind = point, source.split(" ")[0]
    return kind


def _numbers(folder: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    except OSError:
        return []


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
