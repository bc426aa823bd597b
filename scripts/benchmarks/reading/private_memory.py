"""Memory that a process shares with nobody."""

from __future__ import annotations

from pathlib import Path

from reading.question import CannotMeasure


def private_bytes(pid: int | str = "self", *, clean: bool = False) -> int:
    """What a process has written to and shares with no other; with `clean`, also pages of files that it alone maps,
    which the kernel takes back whenever it likes."""
    path = Path(f"/proc/{pid}/smaps_rollup")
    if not path.exists():
        raise CannotMeasure(f"{path} must be there (Linux, with the right to look)")
    names = ("Private_Dirty:", "Private_Clean:") if clean else ("Private_Dirty:",)
    return sum(int(line.split()[1]) << 10 for line in path.read_text().splitlines() if line.startswith(names))
