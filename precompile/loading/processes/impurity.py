"""What to say of a worker that does more than read memory: what it did, where, and what to do instead."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType, ModuleType

from precompile.loading.processes import limits

_IMPORTED_IN = os.getpid()
_OTHERWISE = "or allow it with init_worker(strict=False)"
_MAX_HOLDERS = 3


def of_import(name: str, frame: FrameType | None) -> str:
    """A decoder is being imported, by the code that `frame` and its callers run."""
    places = list(_importers(frame))
    where = f" at {places[0]}" if places else ""
    of_user = next((place for place in places if not _is_installed(place)), None)
    if of_user not in (None, places[0]):
        where += f", asked for at {of_user}"
    return (
        f"{_worker()} imports {name}{where}, but only reads memory: do this work ahead of time (precompile.build), "
        f"import {name} in the parent only, {_OTHERWISE}"
    )


def of_module(name: str) -> str:
    """A decoder was imported before the worker became strict."""
    if _was_forked():
        likely = ("the parent had imported it before it forked this worker: import it later, or start workers by "
                  "multiprocessing_context='forkserver' or 'spawn'")  # fmt: skip
    else:
        likely = ("it was imported while the worker started, by unpickling the dataset, its transform or collate_fn, "
                  "or by the main script: import it only where the parent needs it")  # fmt: skip
    holders = _holders(name)
    known = f" (by {', '.join(holders)})" if holders else ""
    return f"{_worker()} has {name} imported already{known}, but only reads memory. Most likely {likely}; {_OTHERWISE}"


def of_threads(names: Iterable[str]) -> str:
    """Threads appeared that are not Python's; `names` is what the kernel calls them."""
    counts = Counter(names)
    listed = ", ".join(f"{count} named {name}" for name, count in sorted(counts.items()))
    libraries = ", ".join(sorted({path.name for path in limits.loaded_libraries()})) or "none that is known"
    return (
        f"{_worker()} has threads that compiled libraries started ({listed}), but should have none. "
        f"Loaded libraries that start threads: {libraries}. Remove what sets a number of threads from the transform or "
        f"collate_fn, do this work ahead of time (precompile.build), {_OTHERWISE}"
    )


def _worker() -> str:
    return f"strict worker {multiprocessing.current_process().name} (pid {os.getpid()})"


def _was_forked() -> bool:
    """Whether this process began as a copy of the one that wants its batches."""
    process = multiprocessing.current_process()
    method = getattr(process, "_start_method", None) or multiprocessing.get_start_method(allow_none=True)
    if multiprocessing.parent_process() is None or method is None:
        return os.getpid() != _IMPORTED_IN
    return bool(method == "fork")


def _importers(frame: FrameType | None) -> Iterator[str]:
    """FILE:LINE of the code that imports, innermost first, without Python's own machinery for imports."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith("<frozen importlib") and Path(file).parent.name != "importlib":
            yield f"{file}:{frame.f_lineno}"
        frame = frame.f_back


def _is_installed(place: str) -> bool:
    """Whether it is a library's, or Python's own, and so nothing that the user wrote."""
    return "site-packages" in place or "dist-packages" in place or place.startswith(("<frozen", _standard_library))


_standard_library = str(Path(os.__file__).parent) + os.sep


def _holders(name: str) -> list[str]:
    """Modules that have `name`, or a module of it, among their globals; scripts first."""
    top = name.partition(".")[0]
    found = [
        holder
        for holder, module in list(sys.modules.items())
        if holder.partition(".")[0] not in (top, "__mp_main__")
        and top in _tops(getattr(module, "__dict__", {}).values())
    ]
    return sorted(found, key=lambda holder: holder != "__main__")[:_MAX_HOLDERS]


def _tops(values: Iterable[object]) -> set[str]:
    """Names of the packages of the modules among some values. Looks at types, as isinstance can run code of theirs."""
    modules = [vars(value) for value in list(values) if type(value) is ModuleType]
    return {str(names.get("__name__")).partition(".")[0] for names in modules}
