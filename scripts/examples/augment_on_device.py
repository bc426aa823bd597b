"""Train with random crops that are memory reads, and with flips, colour and resized crops on the device.

    python scripts/examples/augment_on_device.py
    python scripts/examples/augment_on_device.py --device cuda

Makes its own pictures in a temporary folder and compiles them; downloads nothing. docs/augmentation.md has the reasons.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from batch_augment import color_jitter, random_flip, random_resized_crop
from torch import nn

import precompile
from precompile import CompiledDataset, Loader, RandomCrop
from precompile.pipeline.demo_data import make_pictures

STORED, WINDOW, INPUT = 144, 128, 96  # pixels: on disk, read into the batch, given to the network


def augment(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """uint8 (batch, 3, height, width) -> float32 (batch, 3, INPUT, INPUT) around 0."""
    images = random_flip(images, generator).float().div_(255)
    images = color_jitter(images, generator)
    return random_resized_crop(images, INPUT, generator, scale=(0.35, 1.0)).sub_(0.5).div_(0.25)


def small_network(num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 24, 5, stride=4), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 48, 3, stride=2), nn.BatchNorm2d(48), nn.ReLU(),
        nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(48 * 9, num_classes),
    )  # fmt: skip


def train(loader: Loader, network: nn.Module, generator: torch.Generator, *, epochs: int) -> tuple[list[float], float]:
    """The loss of each step, and samples per second."""
    optimiser = torch.optim.Adam(network.parameters(), 2e-3)
    losses, count, began = [], 0, time.perf_counter()
    for _ in range(epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(network(augment(images, generator)), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
            count += len(labels)
    values = torch.stack(losses).tolist()  # waits for the device
    return values, count / (time.perf_counter() - began)


def num_different(images: torch.Tensor) -> int:
    return len(images.flatten(1).unique(dim=0))


def show_draws(dataset: CompiledDataset, device: str, generator: torch.Generator) -> None:
    loader = Loader(torch.utils.data.Subset(dataset, [0]), 1, windows=RandomCrop(WINDOW), device=device)
    windows = torch.cat([images for _ in range(8) for images, _ in loader])
    print(f"one image in 8 epochs: {num_different(windows)} different windows")
    copies = windows[:1].repeat(8, 1, 1, 1)
    print(f"8 copies of one window in a batch: {num_different(augment(copies, generator))} different results")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, mps")
    parser.add_argument("--pictures", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator(options.device).manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="precompile-augment-") as folder:
        raw = make_pictures(Path(folder) / "raw", count=options.pictures)
        out = Path(folder) / "pictures.pc"
        precompile.build(raw, out, size=STORED, crop=STORED, quiet=True)
        dataset = CompiledDataset(out, fields=("image", "label"), split="train")
        show_draws(dataset, options.device, generator)
        loader = Loader(dataset, options.batch_size, shuffle=True, windows=RandomCrop(WINDOW), device=options.device)
        network = small_network(len(dataset.classes)).to(options.device)
        losses, rate = train(loader, network, generator, epochs=options.epochs)
    print(f"{len(losses)} steps on {options.device}: loss {losses[0]:.2f} -> {losses[-1]:.2f}, {rate:,.0f} samples/s")


if __name__ == "__main__":
    main()
