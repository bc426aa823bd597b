"""What a worker process does first. Imports neither torch nor numpy: they can be limited before they are loaded."""

from __future__ import annotations

from precompile.loading.processes import activity, limits, purity


def init_worker(worker_id: int = 0, *, strict: bool = False) -> None:
    """Prepare a worker process that reads memory. May be called again.

        DataLoader(dataset, num_workers=4, worker_init_fn=precompile.init_worker)
        DataLoader(dataset, num_workers=4, worker_init_fn=functools.partial(precompile.init_worker, strict=True))

    Every library of the process gets one thread, whether it is loaded already (torch, numpy's BLAS, OpenMP, OpenCV) or
    later; and the process shows `precompile.watch` which sample it is on.

    Args:
        worker_id: ignored; torch's DataLoader gives it.
        strict: from now on the process may not import what decodes (PIL, cv2, torchaudio, soundfile and a few more;
            torchvision imports PIL), and no compiled library may start threads. Who does gets ImpureWorkerError,
            which says where. Threads are looked for once per batch.

    Raises ImpureWorkerError when `strict` and a decoder is imported already.
    """
    limits.limit_libraries()
    if strict:
        purity.forbid_decoders()
    activity.begin()
