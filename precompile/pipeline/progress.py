"""How far a build is: a bar on a terminal, plain lines in logs, JSON lines in a log file."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tqdm import tqdm

from precompile.errors import BusyError, StoppedError, StorageError

_LINE_EVERY_SECONDS = 10.0


class Progress:
    """Counts inputs of one build. A context manager; used by one thread.

    Everything goes to stderr, so that stdout holds results only.
    """

    def __init__(self, total: int = 0, *, quiet: bool = False, log_file: str | os.PathLike[str] | None = None) -> None:
        self._total = total
        self._quiet = quiet
        self._began = self._line_at = time.monotonic()
        self._log: IO[str] | None = None
        if log_file is not None:
            try:
                self._log = Path(log_file).open("a", encoding="utf-8")
            except OSError as error:
                raise StorageError(f"cannot write the log file {log_file}: {error.strerror}; choose another") from None
        self._bar: tqdm[Any] | None = None
        self._finished = self._skipped = 0
        if total:
            self.start(total)

    def start(self, total: int) -> None:
        """Show how far `total` inputs are, from now on."""
        self._total = total
        self._began = self._line_at = time.monotonic()
        if sys.stderr.isatty() and not self._quiet:
            self._bar = tqdm(total=total, unit="file", file=sys.stderr)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._log is not None and error is not None:
            self._log_end(error)
        if self._log is not None:
            self._log.close()

    def _log_end(self, error: BaseException) -> None:
        """What ends with "run again" is a warning, all else an error."""
        if isinstance(error, KeyboardInterrupt):
            self.event("warning", "stopped", message="stopped by a signal; finished shards are kept")
        elif isinstance(error, BusyError | StoppedError):
            self.event("warning", "busy" if isinstance(error, BusyError) else "stopped", message=str(error))
        else:
            self.event("error", "failed", message=str(error) or type(error).__name__)

    def say(self, text: str) -> None:
        """A line for a person, above the bar."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def event(
        self, level: str, event: str, *, task: int | None = None, sample: str | None = None, **facts: Any
    ) -> None:
        """A structured line in the log file: time, level, event, task, sample (a key), and other facts."""
        if self._log is None:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = {"time": now, "level": level, "event": event, "task": task, "sample": sample, **facts}
        try:
            self._log.write(json.dumps(line) + "\n")
            self._log.flush()
        except OSError as error:  # the build is worth more than its log
            self._log = None
            self.say(f"cannot write the log file: {error.strerror}; going on without it")

    def skip(self, inputs: int) -> None:
        """Inputs that an earlier run has finished: they say nothing about how fast this one is."""
        self._finished = self._skipped = inputs

    def finish(self, inputs: int) -> None:
        """Inputs of a finished task."""
        self._finished += inputs
        self.running(0)

    def running(self, inputs: int) -> None:
        """Inputs done so far in tasks that still run."""
        done = min(self._finished + inputs, self._total)
        if self._bar is not None:
            self._bar.update(max(0, done - self._bar.n))
            return
        now = time.monotonic()
        if now - self._line_at >= _LINE_EVERY_SECONDS:
            self._line_at = now
            rate = (done - self._skipped) / (now - self._began)
            left = f", about {(self._total - done) / rate:,.0f} s left" if rate else ""
            self.say(f"{done} of {self._total} inputs, {rate:,.0f}/s{left}")
