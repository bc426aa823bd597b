"""What tests give to worker processes, which find it by its name."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

POISON = 99
"""A sample whose first value is this makes some transforms fail."""


def same(image: torch.Tensor) -> torch.Tensor:
    return image


def in_place(image: torch.Tensor) -> torch.Tensor:
    return image.add_(1)


def as_float(image: torch.Tensor) -> torch.Tensor:
    return image.float() / 255


def sometimes_new(image: torch.Tensor) -> torch.Tensor:
    """Half of the samples are given back as they are."""
    return image if int(image.view(-1)[0]) % 2 else image.flip(-1)


def smaller(image: torch.Tensor) -> torch.Tensor:
    """A view of what was given."""
    return image[:, 1:5, 2:6]


def as_mapping(image: torch.Tensor) -> dict[str, Any]:
    return {"mean": image.float().mean(), "first": int(image.view(-1)[0]), "array": image.numpy()[:, 0].copy()}


def noisy(image: torch.Tensor) -> torch.Tensor:
    """Draws from all the usual generators."""
    drawn = random.random() + float(np.random.rand()) + float(torch.rand(()))
    return torch.cat([image.float().view(-1), torch.tensor([drawn])])


class Keeper:
    """Keeps the last samples it was given, and checks that nobody writes over them."""

    def __init__(self) -> None:
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        for kept, copy in self.kept:
            assert torch.equal(kept, copy), "a sample that the transform has kept was written over"
        self.kept = [*self.kept[-8:], (image, image.clone())]
        return image


def listed(samples: list[Any]) -> list[Any]:
    """A collate function."""
    return list(samples)


def text_and_tensors(samples: list[Any]) -> dict[str, Any]:
    return {
        "images": torch.stack([image for image, _ in samples]),
        "labels": np.array([label for _, label in samples]),
        "names": [f"sample {label}" for _, label in samples],
        "empty": torch.empty(0, 3),
        "strided": torch.arange(12).view(3, 4).t(),
    }


def is_poison(image: torch.Tensor) -> bool:
    return int(image.view(-1)[0]) == POISON


def raises(image: torch.Tensor) -> torch.Tensor:
    if is_poison(image):
        raise ValueError("this picture is poison")
    return image


class Unpicklable(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def raises_unpicklable(image: torch.Tensor) -> torch.Tensor:
    if is_poison(image):
        raise Unpicklable(1, 2)
    return image


def asks_to_exit(image: torch.Tensor) -> torch.Tensor:
    if is_poison(image):
        sys.exit(0)
    return image


def exits(image: torch.Tensor) -> torch.Tensor:
    if is_poison(image):
        os._exit(5)
    return image


def is_killed(image: torch.Tensor) -> torch.Tensor:
    if is_poison(image):
        os.kill(os.getpid(), signal.SIGKILL)
    return image


def gets_sigbus(image: torch.Tensor) -> torch.Tensor:
    if is_poison(image):
        os.kill(os.getpid(), signal.SIGBUS)
    return image


def is_stopped(image: torch.Tensor) -> torch.Tensor:
    if is_poison(image):
        os.kill(os.getpid(), signal.SIGSTOP)
    return image


def hangs(image: torch.Tensor) -> torch.Tensor:
    while is_poison(image):
        time.sleep(1)
    return image


def with_text(samples: list[torch.Tensor]) -> dict[str, Any]:
    """So long that it does not go through a socket at once."""
    return {"images": torch.stack(samples), "text": "x" * 500_000}


def very_long(samples: list[torch.Tensor]) -> dict[str, Any]:
    return {"images": torch.stack(samples), "text": "x" * 20_000_000}


def of_another_axis(image: torch.Tensor) -> torch.Tensor:
    return image.unsqueeze_(0)


def of_another_shape(image: torch.Tensor) -> torch.Tensor:
    return image.transpose_(0, 2)


def of_another_dtype(image: torch.Tensor) -> torch.Tensor:
    image.data = image.float()
    return image


def runs_out(image: torch.Tensor) -> torch.Tensor:
    return next(iter([]))  # type: ignore[no-any-return,call-overload]


class Untold(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def raises_the_untold(image: torch.Tensor) -> torch.Tensor:
    raise Untold


_calls = 0


def sometimes_huge(image: torch.Tensor) -> torch.Tensor:
    global _calls
    _calls += 1
    return torch.zeros(20_000_000, dtype=torch.uint8) if _calls == 100 else image


def iterate_with_workers(root: str) -> str:
    """The error that comes of it."""
    from precompile import CompiledDataset, Loader

    try:
        list(Loader(CompiledDataset(root, fields="image", transform=same), 4, workers=1, start_method="fork"))
    except Exception as error:
        return str(error)
    return "no error"


def forgets_to_return(image: torch.Tensor) -> None:
    image.flip(-1)


def of_many_shapes(image: torch.Tensor) -> torch.Tensor:
    return image[:, : 1 + int(image.view(-1)[0]) % 3]


class CannotBeLoaded:
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image

    def __reduce__(self) -> tuple[Any, ...]:
        return _raise, ()


def _raise() -> None:
    raise ImportError("this is only found in a notebook")


def hangs_always(image: torch.Tensor) -> torch.Tensor:
    while True:
        time.sleep(1)


released = threading.Event()


def hangs_for_a_while(image: torch.Tensor) -> torch.Tensor:
    if is_poison(image):
        released.wait()
    return image


class Slow:
    """Takes some time for each sample."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return image


class ReadsFile:
    """Opens a file for each poisonous sample."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        if is_poison(image):
            self.path.read_bytes()
        return image
