"""The worker process: takes tasks from a socket, compiles and writes shards, and ends with its parent.

Started as `python -c 'from precompile.pipeline.executors.worker import main; main(…)'`, never by fork and never
by importing the user's script again, so that a build runs from a script without a `__main__` guard and from a notebook.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from precompile.errors import PrecompileError

if TYPE_CHECKING:
    from precompile.pipeline.compile_shard import Failure, Job

_PR_SET_PDEATHSIG = 1

THREAD_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Workers are the parallelism; a library that starts threads of its own only makes them fight."""


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a worker."""

    job: Job
    heartbeat: Path


@dataclass(frozen=True, slots=True)
class Task:
    """Compile inputs `order[start:stop]` as shard number `number`."""

    number: int
    start: int
    stop: int
    known: Mapping[int, Failure]


@dataclass(frozen=True, slots=True)
class Probe:
    """Compile these inputs and store nothing."""

    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Probed:
    """Stored bytes and input bytes of the probed inputs that could be compiled, and the seconds it took."""

    record_bytes: tuple[int, ...]
    input_bytes: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A task that cannot be done for a reason outside of the samples."""

    error: PrecompileError


def main(descriptor: int, parent: int) -> None:
    _end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C reaches the whole group; the parent decides
    os.dup2(2, 1)  # decoders that print must not fill a pipe that nobody reads
    connection = Connection(descriptor)
    try:
        start: Start = connection.recv()
        serve(connection, start)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(0)  # the parent is gone


def serve(connection: Connection, start: Start) -> None:
    from precompile.pipeline.compile_sample import make_compiler
    from precompile.pipeline.compile_shard import ShardCompiler
    from precompile.pipeline.executors.heartbeat import HeartbeatFile

    heartbeat = HeartbeatFile(start.heartbeat, create=False)
    compiler = make_compiler(start.job.recipe, start.job.media)
    compiler.load()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    shards = ShardCompiler(start.job, compiler, heartbeat)
    while True:
        task = connection.recv()
        try:
            if isinstance(task, Probe):
                connection.send(_probe(shards, task))
            else:
                connection.send(shards.run(task.number, task.start, task.stop, task.known))
        except PrecompileError as error:
            connection.send(Refused(error))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception:
            traceback.print_exc()
            raise


def _probe(shards: object, probe: Probe) -> Probed:
    from precompile.pipeline.compile_shard import ShardCompiler

    assert isinstance(shards, ShardCompiler)
    began = time.monotonic()
    sizes = [size for sample in probe.samples if (size := shards.measure(sample)) is not None]
    return Probed(tuple(s[0] for s in sizes), tuple(s[1] for s in sizes), time.monotonic() - began)


def _end_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)
