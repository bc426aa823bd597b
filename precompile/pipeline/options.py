"""How to build, and what a build did."""

from __future__ import annotations

import datetime
import math
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from precompile.errors import RecipeError
from precompile.pipeline.quarantine import Quarantined


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How to build; none of it changes the bytes that come out."""

    workers: int | None = None
    """Processes; default: the CPUs this container really has."""
    timeout_seconds: float = 60.0
    """A sample that takes longer is quarantined."""
    max_failures: str | int = 0
    """New failures that are still a success: a number, or a share of the planned inputs such as `1%`."""
    on_error: str = "quarantine"
    """`quarantine` or `stop`."""
    allow_shrink: bool = False
    rebuild: bool = False
    """Compile everything again, even if nothing changed."""
    retry_quarantined: bool = False
    keep: int = 2
    """Generations that are kept."""
    distrusted_shards: tuple[str, ...] = ()
    """Files of damaged shards, whose samples are compiled again; see `verify --repair`."""
    dry_run: bool = False
    """Only compile a small sample, in a temporary folder, and say what a build would do."""
    max_runtime_seconds: float | None = None
    """Stop after that time, keep finished shards, and raise StoppedError."""
    quiet: bool = False
    log_file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("workers", self.workers, 1), ("keep", self.keep, 1)):
            if value is not None and value < least:
                raise RecipeError(f"{name} must be at least {least}, got {name}={value}")
        if not self.timeout_seconds > 0:
            raise RecipeError(f"timeout must be more than 0 seconds, got timeout={self.timeout_seconds}")
        if self.max_runtime_seconds is not None and not self.max_runtime_seconds > 0:
            raise RecipeError(f"max_runtime must be more than 0 seconds, got max_runtime={self.max_runtime_seconds}")
        if self.on_error not in ("quarantine", "stop"):
            raise RecipeError(f"on_error must be quarantine or stop, got on_error={self.on_error!r}")
        self.allowed_failures(100)

    def allowed_failures(self, planned: int) -> int:
        text = str(self.max_failures)
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            number = -1.0
        if text.endswith("%") and number > 100:
            number = -1.0
        if not 0 <= number < math.inf or (not text.endswith("%") and number != int(number)):
            raise RecipeError(f"max_failures must be N or P%, got max_failures={self.max_failures!r}")
        return int(planned * number / 100) if text.endswith("%") else int(number)


@dataclass(frozen=True, slots=True)
class Range:
    """A quantity that was estimated from a sample."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a build would do, by a sample of its inputs."""

    inputs: int
    """To be compiled; all others are up to date."""
    sampled: int
    failed: int
    """Of the sampled ones."""
    bytes: Range
    """To be written in shards; no other temporary space is needed, for a shard is written where it stays."""
    seconds: Range
    """With the workers of the options."""
    shards: int
    temporary_bytes: int
    """Plan and receipts, removed by the commit; shards that it replaces stay until their generation is pruned."""
    free_bytes: int
    """Where OUT lies, or would lie."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a build did; counts are of inputs. planned = compiled + reused + quarantined."""

    planned: int
    compiled: int
    reused: int
    quarantined: int
    left_out: int
    seconds: float
    generation: int
    fingerprint: str
    bytes: int
    """Of the generation's shards."""
    failures: tuple[Quarantined, ...] = ()
    """New or changed failures, which count against max_failures."""
    exit_code: int = 0
    """0, or 3 when there are more new failures than allowed."""
    forecast: Forecast | None = None
    """Of a dry run."""
    finished_at: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["failures"]
        last = {name: values.pop(name) for name in ("exit_code", "finished_at", "forecast")}
        if self.forecast is None:
            del last["forecast"]
        return {**values, "new_failures": len(self.failures), **last}
