"""Where a build keeps what it is working on, inside the output directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BuildDirs:
    """Paths below one output directory. `build/` is empty after a commit."""

    root: Path

    @property
    def lock(self) -> Path:
        """Outside of `build/`, and never deleted, so that two builds always meet at one file."""
        return self.root / ".precompile.lock"

    @property
    def shards(self) -> Path:
        return self.root / "shards"

    @property
    def generations(self) -> Path:
        return self.root / "generations"

    @property
    def work(self) -> Path:
        return self.root / "build"

    @property
    def owner(self) -> Path:
        return self.work / "owner.json"

    @property
    def plan(self) -> Path:
        return self.work / "plan"

    @property
    def receipts(self) -> Path:
        return self.work / "receipts"

    @property
    def kept(self) -> Path:
        """Finished shards of builds that were interrupted before their source changed."""
        return self.work / "kept"

    @property
    def unfinished(self) -> Path:
        """Shards that are being written."""
        return self.work / "shards"

    @property
    def workers(self) -> Path:
        """Heartbeats and error output of workers."""
        return self.work / "workers"
