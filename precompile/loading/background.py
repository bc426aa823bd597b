"""A background thread for copies that leaves torch's threads as it found them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch


def limit_this_thread() -> None:
    """Make torch operations of the calling thread single-threaded, and those of no other thread.

    Every thread that runs a parallel torch operation gets its own OpenMP team, so a loader without this would
    be N x K threads again. torch.set_num_threads changes the calling thread and the default of threads that
    start later; a short-lived second thread sets that default back.
    """
    default = torch.get_num_threads()
    if default > 1:
        torch.set_num_threads(1)
        restore = threading.Thread(target=torch.set_num_threads, args=(default,))
        restore.start()
        restore.join()


def background_thread() -> ThreadPoolExecutor:
    """An executor with one limited thread; it ends with the interpreter, and when the executor is dropped."""
    return ThreadPoolExecutor(1, "precompile-loader", initializer=limit_this_thread)
