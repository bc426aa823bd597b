"""The worker process: takes tasks from a socket, compiles and writes shards, and ends with its parent.

Started as `python -c 'from precompile.pipeline.executors.worker import main; main(…)'`, never by fork and never
by importing the user's script again, so that a build runs from a script without a `__main__` guard and from a notebook.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from precompile.errors import BuildFailedError, PrecompileError

if TYPE_CHECKING:
    from precompile.pipeline.compile_shard import Job, ShardCompiler, Unfinished

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = "1000"

_SWITCH_SECONDS = 0.0002
"""How long the thread that finishes a shard may hold up the decoder; Python's 5 ms are longer than a picture takes."""

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
class Compiled:
    """All inputs of a task are compiled; the next task may come while its shard is made durable."""

    task: int


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
    _offer_to_the_oom_killer()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C reaches the whole group; the parent decides
    os.dup2(2, 1)  # decoders that print must not fill a pipe that nobody reads
    connection = Connection(descriptor)
    try:
        start: Start = connection.recv()
        serve(connection, start)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the parent has no more tasks, or is gone; taking torch apart would cost it a third of a second


def serve(connection: Connection, start: Start) -> None:
    from precompile.pipeline.compile_sample import make_compiler
    from precompile.pipeline.compile_shard import ShardCompiler
    from precompile.pipeline.executors.heartbeat import HeartbeatFile

    heartbeat = HeartbeatFile(start.heartbeat, create=False)
    compiler = make_compiler(start.job.recipe, start.job.media)
    compiler.load()
    gc.freeze()  # what libraries made stays, and need not be looked through again and again
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    _Worker(connection, ShardCompiler(start.job, compiler, heartbeat)).serve()


class _Worker:
    """Answers messages until the parent is gone. Disk writes of one shard overlap with compiling the next."""

    def __init__(self, connection: Connection, shards: ShardCompiler) -> None:
        self._connection = connection
        self._shards = shards
        self._sending = threading.Lock()
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._finisher = ThreadPoolExecutor(1, "precompile-finish")
        self._finishing: Future[None] | None = None

    def serve(self) -> None:
        while True:
            message = self._connection.recv()
            try:
                if isinstance(message, Probe):
                    self._send(_probe(self._shards, message))
                    continue
                shard = self._shards.compile(message)
                if self._finishing is not None:
                    self._finishing.result()
                self._send(Compiled(message.number))
                self._finishing = self._finisher.submit(self._finish, shard)
            except PrecompileError as error:
                self._send(Refused(error))

    def _finish(self, shard: Unfinished) -> None:
        try:
            self._send(self._shards.finish(shard))
        except PrecompileError as error:
            self._send(Refused(error))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the parent is gone, as the main thread sees too
        except Exception as error:
            traceback.print_exc()
            self._send(Refused(BuildFailedError(f"shard {shard.task.number}: {type(error).__name__}: {error}")))

    def _send(self, message: object) -> None:
        with self._sending:
            self._connection.send(message)


def _probe(shards: ShardCompiler, probe: Probe) -> Probed:
    began = time.monotonic()
    sizes = [size for sample in probe.samples if (size := shards.measure(sample)) is not None]
    return Probed(tuple(s[0] for s in sizes), tuple(s[1] for s in sizes), time.monotonic() - began)


def _end_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


def _offer_to_the_oom_killer() -> None:
    """When memory runs out, a worker can be replaced; the build, or the notebook it runs in, cannot."""
    with contextlib.suppress(OSError):  # not Linux, or not allowed
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
