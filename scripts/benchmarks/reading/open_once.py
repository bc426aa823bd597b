"""Opens a dataset in this process, and prints what that cost beyond importing torch. For opening.py.

python -m reading.open_once ROOT [BATCH_SIZE]: with a batch size, up to and with the first batch of a shuffled epoch.
"""

from __future__ import annotations

import json
import sys
import time

import torch  # noqa: F401  before the clock starts

from reading.private_memory import private_bytes


def main() -> None:
    root, batch_size = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None
    memory_before = private_bytes(clean=True)
    began = time.perf_counter()
    from precompile import CompiledDataset, Loader

    dataset = CompiledDataset(root, fields="image")
    batch = None
    if batch_size is not None:
        batch = next(iter(Loader(dataset, batch_size, shuffle=True)))
    seconds = time.perf_counter() - began
    grown = private_bytes(clean=True) - memory_before
    assert batch is None or len(batch) == batch_size
    print(json.dumps({"count": len(dataset), "milliseconds": 1e3 * seconds, "megabytes": grown / 1e6}))


if __name__ == "__main__":
    main()
