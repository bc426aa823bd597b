"""One thread per library in this process: for what is loaded already, and for what is loaded later."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "BLIS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
    "OPENCV_OPENCL_RUNTIME": "disabled",
}
"""What libraries read when they are loaded. Workers are the parallelism; threads within them only fight."""

_OPENBLAS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_", "_64")
)
_OPENBLAS_STOP = "blas_thread_shutdown_"
"""Ends OpenBLAS's threads, as any fork does in the parent. Setting their number in a forked child starts them."""

_SETTERS = {
    "openblas": _OPENBLAS,
    "libmkl_rt": ("MKL_Set_Num_Threads",),
    "libblis": ("bli_thread_set_num_threads",),
    "libgomp": ("omp_set_num_threads",),
    "libiomp": ("omp_set_num_threads",),
    "libomp": ("omp_set_num_threads",),
}
"""Part of a shared library's name -> the C functions, one of which it may have, that take a number of threads."""

_MODULES = (
    ("numexpr", "set_num_threads", 1),
    ("mkl", "set_num_threads", 1),
    ("cv2", "setNumThreads", 0),  # 1 would wait for the pool's threads, which a forked child does not have
    ("cv2.ocl", "setUseOpenCL", False),
)
"""A module, and what is called with what, if it was imported."""

THREADED = (*_SETTERS, "libtbb", "libtbbmalloc", "libarrow", "libavcodec")
"""Parts of the names of shared libraries that start threads."""


def limit_libraries() -> None:
    """Make every library of this process use one thread. May be called again; imports and loads nothing.

    OpenBLAS's threads end; those that other libraries have started already are idle from now on. OpenMP libraries that
    are loaded already, other than torch's, are limited in the calling thread. Where there is no /proc (not Linux),
    BLAS and OpenMP libraries that are loaded already keep their threads. Must not run beside other use of BLAS.
    A parent that called torch.set_num_threads(n) leaves n - 1 idle threads of torch in every child that it forks.
    """
    # First: in a child that was forked after the parent used OpenMP, any parallel operation before this waits for ever.
    _limit_torch()
    os.environ.update(ENVIRONMENT)
    for path in loaded_libraries():
        _limit_shared(path)
    _limit_numba()
    for module, function, value in _MODULES:
        _call(module, function, value)


def loaded_libraries() -> list[Path]:
    """Shared libraries of this process that start threads; empty where there is no /proc."""
    paths = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
            _, slash, rest = line.partition("/")
            name = rest.rpartition("/")[2]
            if slash and ".so" in name and any(part in name for part in THREADED):
                paths.add(Path(slash + rest))
    return sorted(paths)


def _limit_torch() -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    torch.set_num_threads(1)
    if torch.get_num_interop_threads() != 1:
        with contextlib.suppress(RuntimeError):  # they run already; torch does not let them be changed
            torch.set_num_interop_threads(1)


def _limit_shared(path: Path) -> None:
    no_load: int = getattr(os, "RTLD_NOLOAD", 0)
    try:
        library = ctypes.CDLL(str(path), mode=no_load | os.RTLD_NOW)
    except OSError:  # replaced on disk since it was loaded
        return
    for set_num_threads in _setters(library, path.name):
        set_num_threads(1)
    if "openblas" in path.name and hasattr(library, _OPENBLAS_STOP):
        getattr(library, _OPENBLAS_STOP)()


def _setters(library: ctypes.CDLL, file_name: str) -> Iterator[Any]:
    for part, names in _SETTERS.items():
        if part in file_name:
            for name in names:
                with contextlib.suppress(AttributeError):
                    function = getattr(library, name)
                    function.argtypes, function.restype = [ctypes.c_int], None
                    yield function


def _limit_numba() -> None:
    """numba refuses a new NUMBA_NUM_THREADS once its threads run, and `set_num_threads` would start them."""
    parallel = sys.modules.get("numba.np.ufunc.parallel")
    if getattr(parallel, "_is_initialized", False):
        _call("numba", "set_num_threads", 1)
    else:
        os.environ["NUMBA_NUM_THREADS"] = "1"


def _call(module: str, function: str, value: int) -> None:
    """module.function(value), if the module was imported and has it."""
    called = getattr(sys.modules.get(module), function, None)
    if called is not None:
        called(value)
