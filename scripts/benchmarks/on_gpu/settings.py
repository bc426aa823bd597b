"""How long a check takes, and what its rows are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Settings:
    """Full size. Counts are of samples."""

    samples: int = 4096
    """3 x side x side uint8."""
    side: int = 224
    spectrograms: int = 1024
    """80 x 300 to 3000 float16."""
    batch_size: int = 256
    epochs: int = 12
    """Of each check of contents."""
    races: int = 60
    """Batches of each check of races."""
    rounds: int = 7
    """One more comes first and is left out."""
    min_seconds: float = 0.4
    """Epochs of one run and round take at least so long together."""
    steps: int = 80
    """Of training."""
    train_batch_size: int = 128
    model: Callable[[], torch.nn.Module] | None = None
    """Images -> logits of 1000 classes; None is torchvision's ResNet-50."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value < 1:
                raise ValueError(f"{field.name} must be at least 1, got {field.name}={value}")
        if self.samples < max(self.batch_size, self.train_batch_size):
            raise ValueError(f"samples must fill a batch of {max(self.batch_size, self.train_batch_size)}, "
                             f"got samples={self.samples}")  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "model"}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    found: str
    """For people."""
    figures: tuple[float, ...] = ()
    """What was found, or one figure for each round."""
    passed: bool | None = None
    """None: nothing is asked."""

    @property
    def verdict(self) -> str:
        return {None: "", True: "passed", False: "FAILED"}[self.passed]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "figures": list(self.figures)}
