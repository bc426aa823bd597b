"""How large a benchmark is."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Settings:
    """Full size. Counts are of samples."""

    directory: Path | None = None
    """Where datasets are written, on a local disk; None is the system's folder for temporary files."""
    rounds: int = 9
    warm_up: bool = True
    """One more round is run first, and left out."""
    min_seconds: float = 0.2
    """Epochs of one run and round take at least so long together."""
    batch_size: int = 256
    pictures: int = 6_000
    """3x224x224 uint8, and 3x256x256."""
    small_pictures: int = 50_000
    """3x32x32 uint8."""
    spectrograms: int = 2_000
    """80 x 300 to 3000 float16."""
    spectrogram_batch_size: int = 64
    shards: tuple[int, ...] = (8, 512)
    """Of the flat datasets of the case `shards`."""
    open_files: int = 256
    """Limit on open files (ulimit -n) of the whole benchmark."""
    opened: int = 1_000_000
    """3x8x8 uint8."""
    sparse: int = 100_000_000
    """Index files of this length without content."""
    tiny: int = 5_000_000
    """1x8x8 uint8, read by `workers` processes."""
    workers: int = 8

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            for number in value if isinstance(value, tuple) else (value,):
                if type(number) is int and number < 1:
                    raise ValueError(f"{field.name} must be at least 1, got {field.name}={value}")


TOY: dict[str, Any] = {
    "rounds": 1, "warm_up": False, "min_seconds": 0.0, "batch_size": 4, "pictures": 16, "small_pictures": 16,
    "spectrograms": 16, "spectrogram_batch_size": 4, "shards": (3,), "opened": 16, "sparse": 1_000, "tiny": 100,
    "workers": 2,
}  # fmt: skip
"""To see that everything runs; the figures mean nothing."""
