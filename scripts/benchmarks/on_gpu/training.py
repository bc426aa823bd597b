"""How long a training step waits for its batch: ResNet-50 in bfloat16."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from on_gpu.gpu import Gpu
from on_gpu.settings import Row, Settings
from precompile import CompiledDataset, Loader

_WARM_UP = 10


def check_training(gpu: Gpu, images: CompiledDataset, settings: Settings) -> Iterator[Row]:
    """Steps with batches of a Loader, and the same steps with one batch that is there already."""
    loader = Loader(images, settings.train_batch_size, shuffle=True, drop_last=True, device=gpu.device)
    step = _step(gpu, settings)
    for _, batch in zip(range(_WARM_UP), _endless(loader)):
        step(*batch)
    alone, _ = _run(gpu, step, (batch for _ in iter(int, 1)), settings.steps)
    seconds, waited = _run(gpu, step, _endless(loader), settings.steps)
    rate = settings.train_batch_size / seconds
    yield Row(
        "training: step", f"{1e3 * seconds:.1f} ms, {rate:,.0f} images/s, batch {settings.train_batch_size}", (seconds,)
    )
    yield Row("training: the same without loading", f"{1e3 * alone:.1f} ms", (alone,))
    yield Row("training: share of the step that the device waits for data", f"{100 * waited / seconds:.2f} %",
              (waited / seconds,))  # fmt: skip


def _endless(loader: Loader) -> Iterator[Any]:
    while True:
        yield from loader


def _run(gpu: Gpu, step: Callable[[torch.Tensor, torch.Tensor], None], batches: Iterator[Any],
         num_steps: int) -> tuple[float, float]:  # fmt: skip
    """Seconds of a step, and of these the time from the last kernel of a step to when the next batch is there.

    The moments are on the device: it waits when it has nothing left to do and the batch is not there yet.
    """
    next(batches)  # the first batch of an epoch is nobody's wait
    gpu.finish()
    began, waits = time.perf_counter(), []
    for _ in range(num_steps):
        ended = gpu.now()
        batch = next(batches)
        waits.append((ended, gpu.now()))
        step(*batch)
        del batch
    gpu.finish()
    seconds = time.perf_counter() - began
    return seconds / num_steps, sum(gpu.milliseconds(*wait) for wait in waits) / 1e3 / num_steps


def _step(gpu: Gpu, settings: Settings) -> Callable[[torch.Tensor, torch.Tensor], None]:
    model = (settings.model or _resnet50)().to(gpu.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    mean, std = (torch.tensor(values, device=gpu.device).view(3, 1, 1) * 255
                 for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))  # fmt: skip

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(gpu.device.type, torch.bfloat16):
            normalised = ((images - mean) / std).contiguous(memory_format=torch.channels_last)
            loss = functional.cross_entropy(model(normalised), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _resnet50() -> torch.nn.Module:
    import torchvision

    torch.backends.cudnn.benchmark = True
    model: torch.nn.Module = torchvision.models.resnet50()
    return model
