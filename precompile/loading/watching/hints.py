"""From what was seen of a process that does not come forward to what to do about it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from precompile.loading.watching.python_stack import Frame

BUSY_SHARE = 0.8
"""Of one CPU."""
_OPENMP = ("libgomp", "libiomp", "libomp")
_STORAGE_WAITS = re.compile(
    r"request_wait_answer|fuse|wait_for_partner|fifo_open|nfs|rpc_wait|folio_wait|wait_on_page|filemap_fault"
    r"|io_schedule|ceph|cifs|smb|netfs|lustre|cl_sync_io|ll_read|p9_client|jbd2|xfs_|ext4_"
)
_PIPE_WAITS = re.compile(r"pipe_read|wait_for_partner|fifo_open")
_READS = re.compile(
    r"\bopen\(|\.read\w*\(|\bread_\w+\(|\bos\.(stat|listdir|scandir|open|read)\(|\bnp\.(load|fromfile|memmap)\("
)
_LOCKS = re.compile(r"\.acquire\(|^with\b.*(lock|mutex|condition|semaphore)", re.IGNORECASE)
_LOCKING_MODULES = ("/threading.py", "/logging/__init__.py", "/queue.py", "/multiprocessing/synchronize.py")
_WAITING_FOR_WORK = ("/multiprocessing/", "/selectors.py")
_INIT_WORKER = "worker_init_fn=precompile.init_worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of one process that is not dead."""

    pid: int = 0
    letter: str = "S"
    cpu_share: float = 0.0
    waits_in: str = ""
    library: str = ""
    file: str = ""
    filesystem: str = ""
    frames: Sequence[Frame] = ()
    """The innermost first."""
    source: str = ""
    """The line of the innermost frame."""
    own: Frame | None = None
    """The innermost frame of the user's own code."""
    own_source: str = ""
    """Its line."""
    has_stacks: bool = True
    is_consumer: bool = False
    """Whether it is this process, whose thread asks for batches."""
    was_forked: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether it computes, or would if it got a CPU."""
        return self.cpu_share >= BUSY_SHARE or (self.letter == "R" and self.cpu_share > 0.02)

    @property
    def library_is_openmp(self) -> bool:
        return self.library.startswith(_OPENMP)


def hints(facts: Facts) -> list[str]:
    """What is the matter and what to do, one line each. Empty for a process that waits for work, or says nothing."""
    if facts.letter in "Tt":
        by = "a debugger holds it" if facts.letter == "t" else "job control, or a container that is paused"
        return [f"it is stopped ({by}): `kill -CONT {facts.pid}` lets it go on"]
    found = _first(facts)
    is_alone = facts.is_consumer and found is not None
    text = [] if found is None else [f"{'this process itself is what is blocked: ' if is_alone else ''}{found}"]
    if not facts.has_stacks and not facts.is_consumer:
        text.append("its stacks cannot be had: it is still starting, cannot answer, or has no handler; a DataLoader's "
                    f"worker gets one by {_INIT_WORKER}")  # fmt: skip
    return text


def _first(facts: Facts) -> str | None:
    for rule in (_idle, _storage, _openmp, _lock, _running, _sleeping):
        found = rule(facts)
        if found is not None:
            return found or None
    return None


def _idle(facts: Facts) -> str | None:
    """Nothing is the matter with who waits for work: an empty text."""
    return "" if not facts.is_consumer and waits_for_work(facts.frames) else None


def waits_for_work(frames: Sequence[Frame]) -> bool:
    """Whether the loop of a worker of torch's waits in its queue."""
    outer = [frame for frame in frames if not any(part in frame.file for part in _WAITING_FOR_WORK)]
    return len(outer) < len(frames) and bool(outer) and outer[0].function == "_worker_loop" and frames[0] != outer[0]


def _storage(facts: Facts) -> str | None:
    in_pipe = bool(_PIPE_WAITS.search(facts.waits_in))
    if in_pipe and (facts.file.startswith("/") or (not facts.file and _READS.search(facts.source))):
        what = facts.file or "a file"
        return f"it waits for {what}, a named pipe (FIFO) that nobody writes: give the dataset files"
    waits = facts.letter == "D" or (bool(_STORAGE_WAITS.search(facts.waits_in)) and not in_pipe)
    if not waits and not (not facts.is_busy and _READS.search(facts.source) and not facts.library_is_openmp):
        return None
    what = f"for {facts.file}" if facts.file.startswith("/") else "for a file"
    where = f", on a file system of type {facts.filesystem}" if facts.filesystem else ""
    return (
        f"it waits {what}{where}, which does not answer: look at the mount, the server and the disk; "
        "CompiledDataset(…, cache=True) stages a compiled dataset into memory "
        "and reads it from there alone"
    )


def _openmp(facts: Facts) -> str | None:
    in_torch = bool(facts.frames) and ("/torch/" in facts.frames[0].file or "torch." in facts.source)
    in_team = facts.library_is_openmp
    waits = facts.waits_in.startswith("futex") and not facts.is_busy
    if not in_team and not (facts.was_forked and waits and in_torch):
        return None
    where = f" in {facts.library}" if in_team else ""
    if not facts.was_forked:
        return f"it waits{where} for an OpenMP team that never comes together"
    return (
        f"it waits{where} for the threads of an OpenMP team that fork did not bring along ({_at(facts)}): let a "
        f"forked worker have one torch thread from its start ({_INIT_WORKER} for a DataLoader; a Loader's workers do "
        "that), with no torch.set_num_threads in the dataset, or use start method spawn"
    )


def _lock(facts: Facts) -> str | None:
    inner = facts.frames[0] if facts.frames else None
    if inner is None or facts.is_busy:
        return None
    if not _LOCKS.search(facts.source) and not inner.file.endswith(_LOCKING_MODULES):
        return None
    if facts.is_consumer or not facts.was_forked:
        return f"it waits for a lock or a queue that somebody else holds ({_at(facts)}): see the stacks"
    return (
        f"it waits for a lock or a queue ({_at(facts)}), most likely a lock that was held when it was forked, and "
        "whose holder stayed in the parent: use start method spawn or forkserver, and no locks in datasets; else "
        "one that it holds itself"
    )


def _running(facts: Facts) -> str | None:
    if not facts.is_busy:
        return None
    return (
        f"it runs, at {facts.cpu_share:.0%} of a CPU, in {_at(facts)}: if that goes round for ever, mend it; if it is "
        "merely slow, raise the timeout, use more workers, or precompile what it does to each sample"
    )


def _sleeping(facts: Facts) -> str | None:
    if not facts.frames:
        return None
    return f"it sleeps in {_at(facts)}"


def _at(facts: Facts) -> str:
    """The line of the user's own that is at work; where there is none, the innermost."""
    if facts.own is not None:
        return _place(facts.own, facts.own_source)
    return _place(facts.frames[0], facts.source) if facts.frames else "a place that is not known"


def _place(frame: Frame, source: str) -> str:
    line = f": {source}" if source else ""
    return f"{frame.function}, {os.path.basename(frame.file)} line {frame.line}{line}"
