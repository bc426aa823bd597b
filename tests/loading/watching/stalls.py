"""Loaders that stall in many ways. Run as a script, it forks a process for each that it is asked for, so that torch is
imported once; none of them can hang whoever asks.

A scenario is a function that gives what to watch. What happened comes back as JSON: see `Outcome`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from precompile.loading.processes import activity, stacks
from precompile.loading.processes.init_worker import init_worker
from precompile.loading.watching import interrupt, monitor
from precompile.loading.watching.watch import watch

LIMIT_SECONDS = 60
"""After which a scenario is killed."""
COUNT, BAD = 12, 5


@dataclass
class Outcome:
    """What became of one scenario."""

    error: str = ""
    """The class of what was raised; empty where nothing was."""
    text: str = ""
    """Its message."""
    cause: str = ""
    batches: int = 0
    logged: list[tuple[str, str]] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    """That were left."""
    is_restored: bool = False
    """Whether the signals have their handlers of before."""
    exit_code: int = 0
    stderr: str = ""


class Stalls(torch.utils.data.Dataset[torch.Tensor]):
    """Sample BAD does something that does not end."""

    def __init__(self, how: Callable[[], object], bad: int = BAD) -> None:
        self.how, self.bad = how, bad

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.bad:
            self.how()
        return torch.zeros(2)


class Uneven(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(2)
        if torch.utils.data.get_worker_info().id:  # type: ignore[union-attr]
            yield from range(4)
            raise RuntimeError("sample 6 is damaged")


def loader(how: Callable[[], object], *, context: str | None = "fork", workers: int = 2, **options: Any) -> Any:
    context = context if workers else None
    return DataLoader(Stalls(how), 1, num_workers=workers, multiprocessing_context=context, **options)


def sleep_for_ever() -> None:
    time.sleep(10_000)


def sleep_in_steps(count: int) -> None:
    for _ in range(count):
        time.sleep(0.1)


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def bus_error() -> None:
    os.kill(os.getpid(), signal.SIGBUS)


def use_all_memory() -> None:
    kept = []
    while True:
        kept.append(b"x" * 2**24)


def exit_by_itself() -> None:
    os._exit(3)


def compute_for_ever() -> None:
    while True:
        pass


LOCK = threading.Lock()


def take_the_lock() -> None:
    with LOCK:
        pass


class Fifo:
    """Reads a FIFO that nobody writes."""

    def __init__(self, path: str) -> None:
        self.path = path
        os.mkfifo(path)

    def __call__(self) -> None:
        open(self.path, "rb").read()


class Once:
    """Sleeps the first time."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self) -> None:
        if not os.path.exists(self.path):
            Path(self.path).touch()
            sleep_for_ever()


class ReadOf:
    """Reads what is open already."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __call__(self) -> None:
        os.read(self.fd, 1)


def stuck_in_c() -> None:
    """A call that goes on after a signal."""
    library = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(128)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


class Fuse:
    """A file system that never answers."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"fuse", folder.encode(), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "mount")

    def __call__(self) -> None:
        open(self.folder + "/photo.jpg", "rb").read()

    def end(self) -> None:
        ctypes.CDLL(None).umount2(self.folder.encode(), 2)
        os.close(self.fd)


def many_threads() -> torch.Tensor:
    torch.set_num_threads(2)
    return torch.zeros(45_000_000, dtype=torch.uint8).clone()


class Blocks:
    """An iterable of one's own that blocks where it is told."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __iter__(self) -> Iterator[int]:
        if self.where == "start":
            sleep_for_ever()
        return self._batches()

    def _batches(self) -> Iterator[int]:
        try:
            yield from range(3)
        finally:
            if self.where == "shutdown":
                sleep_for_ever()


class SlowShutdown(Blocks):
    def __iter__(self) -> Iterator[int]:
        return SlowToLeave()


class SlowToLeave:
    """An iterator whose __del__ blocks, so that no exception gets out of it."""

    count = 0

    def __iter__(self) -> SlowToLeave:
        return self

    def __next__(self) -> int:
        self.count += 1
        if self.count > 3:
            raise StopIteration
        return self.count

    def __del__(self) -> None:
        sleep_for_ever()


def ready_then(do: Callable[[], object]) -> Iterator[int]:
    """Without torch's DataLoader: a worker of plain multiprocessing that runs `do`, and a pipe that it never writes."""
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: (do(), there.send(1)), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.kill()


def reads(root: str, generation: int, do: Callable[[], object]) -> Callable[[], None]:
    """As a dataset says what it reads."""

    def read() -> None:
        assert activity.page is not None
        activity.page.dataset(root, generation)
        activity.page.reading(2, 3)
        do()

    return read


def keeps_moving() -> None:
    for number in range(20):
        assert activity.page is not None
        activity.page.reading(number)
        time.sleep(0.15)


def in_a_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


class Scenarios:
    """By name. `argument` is a folder for whoever needs one."""

    def __init__(self, argument: str) -> None:
        self.argument = argument
        self.timeout_seconds = 1.0
        self.tries = 1
        self.options: dict[str, Any] = {}
        self.at_end: Callable[[], None] = lambda: None
        self.per_batch: Callable[[int], object] = lambda number: None

    def sleeps(self) -> Iterable[Any]:
        return loader(sleep_for_ever)

    def sleeps_spawned(self) -> Iterable[Any]:
        self.timeout_seconds = 10.0  # beside the import of torch in a new process
        return loader(sleep_for_ever, context="spawn", worker_init_fn=init_worker)

    def sleeps_without_handler(self) -> Iterable[Any]:
        return loader(sleep_for_ever, worker_init_fn=lambda number: faulthandler.unregister(stacks.SIGNAL))

    def once(self) -> Iterable[Any]:
        """The second iteration goes on to the end."""
        self.tries = 2
        return loader(Once(self.argument + "/done"), persistent_workers=True)

    def fails(self) -> Iterable[Any]:
        """One worker has given all it had when the other fails."""
        return DataLoader(Uneven(), num_workers=2, multiprocessing_context="fork", prefetch_factor=1)

    def logging_lock(self) -> Iterable[Any]:
        """What watches cannot log either."""
        handler, is_held, is_over = logging.getLogger("precompile").handlers[0], threading.Event(), threading.Event()

        def hold() -> None:
            with handler.lock:  # type: ignore[union-attr]
                is_held.set()
                is_over.wait()

        self.at_end = is_over.set
        threading.Thread(target=hold).start()
        is_held.wait()
        return loader(lambda: logging.getLogger("precompile").error("sample 5 is odd"), workers=0)

    def sleeps_persistent(self) -> Iterable[Any]:
        return loader(sleep_for_ever, persistent_workers=True, pin_memory=False)

    def lock(self) -> Iterable[Any]:
        LOCK.acquire()
        return loader(take_the_lock)

    def stopped(self) -> Iterable[Any]:
        return loader(stop_itself)

    def killed(self) -> Iterable[Any]:
        self.timeout_seconds = 30.0
        return loader(kill_itself)

    def bus_error(self) -> Iterable[Any]:
        self.timeout_seconds = 30.0
        return loader(bus_error)

    def exits(self) -> Iterable[Any]:
        self.timeout_seconds = 30.0
        return loader(exit_by_itself)

    def killed_unnoticed(self) -> Iterable[Any]:
        return ready_then(kill_itself)

    def fifo(self) -> Iterable[Any]:
        return loader(Fifo(self.argument + "/fifo"))

    def fifo_open(self) -> Iterable[Any]:
        path = Fifo(self.argument + "/fifo").path
        return loader(ReadOf(os.open(path, os.O_RDWR)))

    def fuse(self) -> Iterable[Any]:
        filesystem = Fuse(self.argument)
        self.at_end = filesystem.end
        return loader(reads(self.argument, 1, filesystem))

    def busy(self) -> Iterable[Any]:
        return loader(compute_for_ever)

    def compiled(self) -> Iterable[Any]:
        return loader(reads(self.argument, 1, sleep_for_ever))

    def alone_sleeps(self) -> Iterable[Any]:
        return loader(sleep_for_ever, workers=0)

    def alone_lock(self) -> Iterable[Any]:
        LOCK.acquire()
        return loader(take_the_lock, workers=0)

    def alone_fifo(self) -> Iterable[Any]:
        return loader(Fifo(self.argument + "/fifo"), workers=0)

    def openmp(self) -> Iterable[Any]:
        many_threads()
        return ready_then(many_threads)

    def openmp_dataloader(self) -> Iterable[Any]:
        many_threads()
        return loader(many_threads)

    def in_c_stays(self) -> Iterable[Any]:
        self.shorten_grace()
        self.options["exit_when_stuck"] = False
        threading.Thread(target=self._exit_when_it_says_so, daemon=True).start()
        return loader(stuck_in_c, workers=0)

    def _exit_when_it_says_so(self) -> None:
        """The main thread will not come back."""
        while not any(level == "CRITICAL" for level, _ in LOGGED):
            time.sleep(0.05)
        in_a_thread(lambda: (print(json.dumps(asdict(Outcome(logged=LOGGED))), flush=True), os._exit(9)))

    def in_c(self) -> Iterable[Any]:
        """With a worker, whose pid it writes down."""
        self.shorten_grace()
        worker = multiprocessing.get_context("fork").Process(target=sleep_for_ever, daemon=True)
        worker.start()
        Path(self.argument, "pid").write_text(str(worker.pid))
        return (stuck_in_c() for _ in range(1))

    def shorten_grace(self) -> None:
        monitor._GRACE_SECONDS = monitor._THREAD_GRACE_SECONDS = 0.5

    def oom(self) -> Iterable[Any]:
        """`argument` is a control group with a limit."""
        self.timeout_seconds = 30.0
        Path(self.argument, "cgroup.procs").write_text(str(os.getpid()))
        return loader(use_all_memory, workers=1)

    def lock_in_a_thread(self) -> Iterable[Any]:
        """Outside of the main thread, where nothing interrupts it."""
        self.shorten_grace()
        LOCK.acquire()
        return loader(take_the_lock, workers=0)

    def start(self) -> Iterable[Any]:
        return Blocks("start")

    def worker_init(self) -> Iterable[Any]:
        return loader(sleep_for_ever, worker_init_fn=lambda number: sleep_for_ever())

    def shutdown(self) -> Iterable[Any]:
        self.per_batch = lambda number: _BREAK
        return Blocks("shutdown")

    def shutdown_swallowed(self) -> Iterable[Any]:
        return SlowShutdown("shutdown")

    def slow_but_moving(self) -> Iterable[Any]:
        return loader(keeps_moving)

    def paused(self) -> Iterable[Any]:
        """The whole process stands still for longer than the timeout, as a job that is suspended."""
        monitor._PAUSE_SECONDS = 0.3
        child = os.fork()
        if not child:
            time.sleep(0.5)
            os.kill(os.getppid(), signal.SIGSTOP)
            time.sleep(1.5)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        return (sleep_in_steps(8 if number == 0 else 0) for number in range(12))

    def slow_consumer(self) -> Iterable[Any]:
        self.per_batch = lambda number: time.sleep(1.5 if number == 3 else 0)
        return loader(int)

    def nested(self) -> Iterable[Any]:
        self.timeout_seconds = 100.0
        return watch(loader(sleep_for_ever), 1.0)

    def nested_outer(self) -> Iterable[Any]:
        return watch(loader(sleep_for_ever), 100.0)

    def no_stall(self) -> Iterable[Any]:
        return loader(int)

    def thread(self) -> Iterable[Any]:
        return loader(sleep_for_ever)

    def thread_no_stall(self) -> Iterable[Any]:
        return loader(int)


_BREAK = object()
LOGGED: list[tuple[str, str]] = []


class _Log(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        LOGGED.append((record.levelname, record.getMessage()))


def run_scenario(name: str, argument: str) -> Outcome:
    logging.getLogger("precompile").addHandler(_Log())
    logging.getLogger("precompile").propagate = False
    outcome = Outcome(logged=LOGGED)
    scenarios = Scenarios(argument)
    before = signal.getsignal(interrupt.SIGNAL)
    child_before = signal.getsignal(signal.SIGCHLD)
    in_thread = name in ("thread", "thread_no_stall", "lock_in_a_thread")
    watched = watch(getattr(scenarios, name)(), scenarios.timeout_seconds, **scenarios.options)

    def iterate() -> None:
        try:
            for _ in watched:
                outcome.batches += 1
                if scenarios.per_batch(outcome.batches) is _BREAK:
                    break
        except BaseException as error:
            outcome.error, outcome.text = type(error).__name__, str(error)
            outcome.cause = type(error.__cause__).__name__ if error.__cause__ else ""

    in_a_thread(iterate) if in_thread else iterate()
    if scenarios.tries == 2:
        outcome.batches = 0
        iterate()
    scenarios.at_end()
    outcome.threads = sorted(one.name for one in threading.enumerate() if one.name.startswith("precompile-watch"))
    outcome.is_restored = signal.getsignal(interrupt.SIGNAL) == before
    outcome.is_restored &= signal.getsignal(signal.SIGCHLD) == child_before
    return outcome


def serve() -> None:
    """Reads `name argument`, writes the pid of a new process, whose output has the outcome."""
    list(loader(int))  # torch sets a handler of SIGCHLD, which stays
    for line in sys.stdin:
        name, argument, output, errors = line.rstrip("\n").split("\t")
        pid = os.fork()
        if not pid:
            signal.alarm(LIMIT_SECONDS)
            for path, fd in ((output, 1), (errors, 2)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), fd)
            print(json.dumps(asdict(run_scenario(name, argument))), flush=True)
            sys.exit()
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


class Stage:
    """The script, running."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, name: str, folder: Path, argument: Path | None = None) -> Outcome:
        """One scenario, from its beginning to the end of its process. argument: by default an empty folder."""
        output, errors = folder / f"{name}.out", folder / f"{name}.err"
        if argument is None:
            argument = folder / "argument"
            argument.mkdir()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\t{argument}\t{output}\t{errors}\n")
        self._process.stdin.flush()
        exit_code = int(self._process.stdout.readline())
        text = output.read_text()
        outcome = Outcome(**json.loads(text.splitlines()[-1])) if text.strip() else Outcome()
        outcome.logged = [(level, message) for level, message in outcome.logged]
        outcome.exit_code, outcome.stderr = exit_code, errors.read_text()
        return outcome

    def close(self) -> None:
        self._process.communicate()


if __name__ == "__main__":
    serve()
