"""`precompile demo [DIR]`"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from precompile.errors import ForeignDirectoryError

_BATCH_SIZE = 64
_RAW_WORKERS = 2


@click.command("demo")
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--pictures", default=600, show_default=True, help="how many jpg to make")
@click.option("--clips", default=300, show_default=True, help="how many wav to make")
def command(directory: Path | None, pictures: int, clips: int) -> None:
    """Make pictures and sounds, compile both, train a small network from each, and compare the speed with raw files.

    Writes to DIR, or to a new folder for temporary files. Takes under a minute; downloads nothing.
    """
    from precompile.pipeline.demo_data import RawClips, RawPictures, make_clips, make_pictures

    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="precompile-demo-"))
    elif directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ForeignDirectoryError(f"{directory}: expected a new or an empty directory for the demo")
    click.echo(f"making {pictures} jpg and {clips} wav in {directory}")
    make_pictures(directory / "pictures", count=pictures)
    make_clips(directory / "clips", count=clips)
    click.echo("\nPICTURES: jpg -> uint8 3x224x224")
    _show(directory / "pictures", directory / "pictures.pc", "image", RawPictures, size=256, crop=224)
    click.echo("\nSOUNDS: wav -> log-mel spectrogram 80x101, float16")
    _show(directory / "clips", directory / "clips.pc", "spectrogram", RawClips, sample_rate=16_000, features="mel")
    click.echo(f"\nall files are in {directory}; look at one with: precompile info {directory / 'pictures.pc'}")


def _show(raw: Path, out: Path, field: str, raw_dataset: Any, **recipe: Any) -> None:
    from torch.utils.data import DataLoader

    from precompile import CompiledDataset, Loader, build

    summary = build(raw, out, quiet=True, **recipe)
    raw_bytes = sum(path.stat().st_size for path in raw.rglob("*") if path.is_file())
    click.echo(
        f"  built {summary.compiled} samples in {summary.seconds:.1f} s: {raw_bytes / 1e6:.1f} MB in {raw}"
        f" -> {summary.bytes / 1e6:.1f} MB in {out}"
    )
    dataset = CompiledDataset(out, fields=(field, "label"))
    loader = Loader(dataset, _BATCH_SIZE, shuffle=True)
    first, last, accuracy = train(loader, num_classes=len(dataset.classes), epochs=4)
    click.echo(f"  trained on Loader: loss {first:.2f} -> {last:.2f}, accuracy {accuracy:.0%} on the last batches")
    on_the_fly = _samples_per_second(DataLoader(raw_dataset(raw), _BATCH_SIZE, num_workers=_RAW_WORKERS))
    compiled = max(_samples_per_second(loader) for _ in range(3))
    click.echo(
        f"  raw folder, DataLoader with {_RAW_WORKERS} workers: {on_the_fly:,.0f} samples/s;"
        f" compiled, Loader with 1 thread: {compiled:,.0f} samples/s"
    )


def train(loader: Iterable[Any], *, num_classes: int, epochs: int) -> tuple[float, float, float]:
    """A small convolutional network; returns the first and the last loss, and the accuracy over the last epoch."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 24, 3, stride=2), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 48, 3, stride=2), nn.BatchNorm2d(48), nn.ReLU(),
        nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(48 * 9, num_classes),
    )  # fmt: skip
    optimiser = torch.optim.Adam(network.parameters(), 2e-3)
    losses: list[float] = []
    right = seen = 0
    for epoch in range(epochs):
        for batch, labels in loader:
            scores = network(_prepared(batch))
            loss = nn.functional.cross_entropy(scores, labels)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.item())
            if epoch == epochs - 1:
                right += int((scores.argmax(1) == labels).sum())
                seen += len(labels)
    return losses[0], losses[-1], right / max(1, seen)


def _prepared(batch: Any) -> Any:
    """uint8 images, or float16 spectrograms, -> small float (batch, 3, height, width)."""
    import torch
    from torch.nn import functional

    if batch.dtype == torch.uint8:
        return functional.avg_pool2d(batch.float().div_(255), 4)
    return functional.avg_pool2d(batch.float().div_(10).unsqueeze(1).expand(-1, 3, -1, -1), 2)


def _samples_per_second(loader: Iterable[Any]) -> float:
    began, count = time.perf_counter(), 0
    for _, labels in loader:
        count += len(labels)
    return count / (time.perf_counter() - began)
