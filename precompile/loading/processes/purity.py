"""A strict worker reads memory: it imports no decoder, and no compiled library starts threads in it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from precompile.errors import ImpureWorkerError
from precompile.loading.processes import impurity

DECODERS = frozenset({
    "PIL", "av", "cv2", "decord", "imageio", "librosa", "simplejpeg", "soundfile", "torchaudio", "torchcodec",
    "torchvision.io", "turbojpeg",
})  # fmt: skip
"""What a strict worker may not import. The list is closed. torchvision imports PIL, so it is forbidden as well."""

is_strict = False
"""Whether this process promised to be pure. The children that it forks have not."""

_TASKS = "/proc/self/task"
_WAITS_SECONDS = (0.002, 0.01, 0.05)
_known_tasks: frozenset[str] = frozenset()
_violation: str | None = None


def forbid_decoders() -> None:
    """Make this process strict from now on: decoders cannot be imported, and `check` looks for new threads.

    Raises ImpureWorkerError when a decoder is imported already. May be called again.
    """
    global is_strict, _known_tasks
    if is_strict:
        return
    for name in sorted(DECODERS):
        if sys.modules.get(name) is not None:
            raise ImpureWorkerError(impurity.of_module(name))
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _known_tasks = _tasks()
    is_strict = True


def check() -> None:
    """Raise ImpureWorkerError when this strict process is not pure any more. To be called once per batch.

    An import that was refused is reported again, in case somebody caught the error.
    """
    if _violation is not None:
        raise ImpureWorkerError(_violation)
    check_threads()


def check_threads() -> None:
    """Raise ImpureWorkerError when there are threads that are not Python's and were not here from the start.

    Does nothing in a process that is not strict, and where there is no /proc (not Linux).
    """
    if not is_strict:
        return
    new = _strangers()
    for seconds in _WAITS_SECONDS:
        if not new:
            return
        time.sleep(seconds)  # Python does not know its own threads while they start and while they end
        new &= _strangers()
    if new:
        raise ImpureWorkerError(impurity.of_threads(_name(task) for task in new))


def _forget() -> None:
    global is_strict, _violation
    is_strict, _violation = False, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class _Finder:
    """Gives decoders a loader that refuses. Whether one is installed may still be asked (importlib.util.find_spec)."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not is_strict or name not in DECODERS:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None:
            spec.loader = _Refusal()
        return spec


class _Refusal(importlib.abc.Loader):
    """Raises ImpureWorkerError: an ImportError would be taken for a library that is not installed."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> NoReturn:
        global _violation
        _violation = impurity.of_import(spec.name, sys._getframe(1))
        raise ImpureWorkerError(_violation)

    def exec_module(self, module: ModuleType) -> NoReturn:
        raise AssertionError(module)  # Python asks for it before it creates a module


_finder = _Finder()


def _tasks() -> frozenset[str]:
    """Ids of all threads of this process; empty where there is no /proc."""
    try:
        return frozenset(os.listdir(_TASKS))
    except OSError:
        return frozenset()


def _strangers() -> frozenset[str]:
    return _tasks() - _known_tasks - {str(thread.native_id) for thread in threading.enumerate()}


def _name(task: str) -> str:
    try:
        return Path(_TASKS, task, "comm").read_text().strip()
    except OSError:
        return "(ended)"
