"""torchvision's ImageFolder on jpg files, decoded by torchvision.io straight to uint8 tensors.

The files have the size that is wanted, at quality 90: this is less work than photographs as they are found, which are
larger and need a resize too. Each sample has a class folder of its own, so that its label is its row.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from peer_protocol import Epoch, dataloader_epoch, serve, worker_cases
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image


def prepare(rows: Path, folder: Path) -> None:
    for label, row in enumerate(np.load(rows, mmap_mode="r")):
        path = jpg_path(folder, label)
        path.parent.mkdir(parents=True)
        Image.fromarray(row.transpose(1, 2, 0)).save(path, quality=90)


def jpg_path(folder: Path, label: int) -> Path:
    return folder / "classes" / f"{label:08d}" / "image.jpg"


def cases(folder: Path, batch_size: int) -> dict[str, Epoch]:
    dataset = ImageFolder(str(folder / "classes"), loader=decode)
    return worker_cases(partial(dataloader_epoch, dataset, batch_size))


def decode(path: str) -> torch.Tensor:
    return decode_image(path, ImageReadMode.RGB)


def expected(folder: Path, labels: np.ndarray) -> np.ndarray:
    """What Pillow decodes, which is what torchvision decodes, pixel by pixel."""
    pictures = [np.asarray(Image.open(jpg_path(folder, label)).convert("RGB")) for label in labels]
    return np.stack(pictures).transpose(0, 3, 1, 2)


if __name__ == "__main__":
    serve(prepare, cases, "torchvision", expected=expected)
