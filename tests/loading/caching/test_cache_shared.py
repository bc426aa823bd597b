"""All processes of a host, and their workers, have one copy of a dataset in memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builds import REPOSITORY

NUM_MEBIBYTES = 24
READERS = """
import os, sys
from torch.utils.data import DataLoader
from precompile import CompiledDataset, init_worker

for _ in range(4):
    if os.fork() == 0:
        dataset = CompiledDataset(sys.argv[1], fields="image", cache=sys.argv[2])
        loader = DataLoader(dataset, 2, num_workers=4, multiprocessing_context="fork", persistent_workers=True,
                            collate_fn=dataset.collate, worker_init_fn=init_worker)
        read = sum(len(batch) for batch in loader)
        workers = [worker.pid for worker in loader._iterator._workers]
        os.write(1, f"{dataset.stored.root} {read} {os.getpid()} {' '.join(map(str, workers))}\\n".encode())
        sys.stdin.read()
        sys.exit()
for _ in range(4):
    os.wait()
"""  # imported once, since importing torch takes longer than all the rest


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc/<pid>/smaps")
def test_sixteen_workers_of_four_processes_share_one_copy(mebibytes: Callable[[int], Path], home: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", READERS, str(mebibytes(NUM_MEBIBYTES)), str(home)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    try:
        assert parent.stdout is not None
        lines = [parent.stdout.readline().split() for _ in range(4)]
        entries, counts = {line[0] for line in lines}, {line[1] for line in lines}
        pids = [int(pid) for line in lines for pid in line[2:]]
        assert counts == {str(NUM_MEBIBYTES)}
        assert len(set(pids)) == 20
        (entry,) = entries
        resident = sum(memory_of(pid, entry, "Rss") for pid in pids)
        proportional = sum(memory_of(pid, entry, "Pss") for pid in pids)
        assert proportional <= 1.1 * NUM_MEBIBYTES * 1024
        assert resident > 3 * NUM_MEBIBYTES * 1024  # each process has mapped all of it, and has it in common
    finally:
        parent.communicate()


def memory_of(pid: int, folder: str, kind: str) -> int:
    """KiB that a process has of files below a folder."""
    total, is_below = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_below = folder in line
        elif is_below and line.startswith(f"{kind}:"):
            total += int(line.split()[1])
    return total
