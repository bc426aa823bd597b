"""One line that says where figures were measured."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

from precompile import machine


def machine_line(*packages: str) -> str:
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return (
        f"{machine.usable_cpus()} CPUs ({model}), {platform.system()}, Python {platform.python_version()}, {versions}"
    )
