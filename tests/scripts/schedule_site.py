"""The places that the scheduled jobs and docs/operations.md name, below one temporary folder."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builds import REPOSITORY, Outcome


@dataclass(frozen=True)
class Site:
    """Stands for /data/photos, /data/compiled, /var/log/precompile and /opt/precompile/bin of the examples."""

    root: Path

    @property
    def raw(self) -> Path:
        return self.root / "photos"

    @property
    def out(self) -> Path:
        return self.root / "compiled" / "photos.pc"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def environment(self) -> dict[str, str]:
        """What a job inherits: little, as under cron, and the paths of the page about operations."""
        return {
            "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY),
            "SOURCE": str(self.raw), "OUT": str(self.out), "LOGS": str(self.logs),
        }  # fmt: skip

    def here(self, text: str) -> str:
        """A command or a value of an example, with the paths of this site."""
        places = {
            "/data/photos": self.raw, "/data/compiled/photos.pc": self.out, "/data/compiled": self.out.parent,
            "/var/log/precompile": self.logs, "/opt/precompile/bin": self.bin,
        }  # fmt: skip
        for there, place in places.items():
            text = text.replace(there, str(place))
        return text

    def install(self, name: str, text: str) -> Path:
        """An executable on the PATH of this site."""
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def install_stub(self, code: int, message: str = "") -> None:
        """A `precompile` that only says something and ends with a code."""
        self.install("precompile", f"#!/bin/sh\nprintf '%s' '{message}' >&2\nexit {code}\n")

    def start(self, *command: str | Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(part) for part in command], env={**self.environment, **(environment or {})}, cwd=self.root,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *command: str | Path, environment: Mapping[str, str] | None = None) -> Outcome:
        process = self.start(*command, environment=environment)
        out, err = process.communicate(timeout=120)
        return Outcome(process.returncode, out, err)
