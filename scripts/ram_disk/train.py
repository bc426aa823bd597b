"""Train a linear model on a compiled dataset that is read from memory, one copy for all ranks of a host.

    precompile demo /tmp/precompile-demo                        # leaves /tmp/precompile-demo/pictures.pc
    python scripts/ram_disk/train.py /tmp/precompile-demo/pictures.pc
    torchrun --standalone --nproc-per-node 2 scripts/ram_disk/train.py /tmp/precompile-demo/pictures.pc
    precompile cache drop /tmp/precompile-demo/pictures.pc      # else it stays until the machine starts again

The images must all have the same size. kubernetes-train.yaml and docker-train.sh beside this file run it in containers.
"""

from __future__ import annotations

import argparse
import logging
import os
import time

import torch
from torch import distributed, nn

from precompile import Cache, CompiledDataset, Loader, ShuffleSampler

SIDE = 16
"""Pixels that the model sees."""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("out", metavar="OUT", help="a compiled dataset with fields image and label")
    found.add_argument("--split", help="only this split  [all]")
    found.add_argument("--cache", metavar="DIR", help="where it is staged  [/dev/shm/precompile-UID]")
    found.add_argument("--epochs", type=int, default=2)
    found.add_argument("--batch-size", type=int, default=64, help="of one rank")
    return found


def open_dataset(options: argparse.Namespace) -> CompiledDataset:
    """Staged by whichever rank comes first, while the others wait; from disk where memory has no room for it."""
    cache = Cache(directory=options.cache, if_full="disk")
    return CompiledDataset(options.out, fields=("image", "label"), split=options.split, cache=cache)


def place() -> tuple[str, torch.device]:
    """The backend of this rank, and its device."""
    if not torch.cuda.is_available():
        return "gloo", torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    return "nccl", device


def linear_model(dataset: CompiledDataset) -> nn.Module:
    shape = dataset.schema["image"].shape
    if None in shape:
        raise SystemExit(f"images must all have the same size, got {shape}; build with --size and --crop")
    num_classes = len(dataset.classes or ()) or int(max(dataset.targets)) + 1
    return nn.Sequential(nn.AdaptiveAvgPool2d(SIDE), nn.Flatten(), nn.Linear(shape[0] * SIDE**2, num_classes))


def train(loader: Loader, model: nn.Module, *, epochs: int) -> tuple[float, int, float]:
    """The last loss, how many images this rank saw, and in how many seconds."""
    optimiser = torch.optim.SGD(model.parameters(), 0.003)
    count, loss, began = 0, torch.zeros(()), time.perf_counter()
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.float().div_(255)), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            count += len(labels)
    return loss.item(), count, time.perf_counter() - began  # .item() waits for the device


def main() -> None:
    options = parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # precompile says what it staged, and where
    rank, num_ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

    # Before the ranks meet: on a slow network staging can take longer than a collective operation may.
    dataset = open_dataset(options)
    backend, device = place()
    model = linear_model(dataset).to(device)
    if num_ranks > 1:
        distributed.init_process_group(backend)
        model = nn.parallel.DistributedDataParallel(model)
    sampler = ShuffleSampler(dataset, rank=rank, world_size=num_ranks)
    loader = Loader(dataset, options.batch_size, sampler=sampler, device=device)
    loss, count, seconds = train(loader, model, epochs=options.epochs)
    if rank == 0:
        print(f"read from {dataset.stored.root}")
        print(f"{num_ranks} rank{'s' * (num_ranks > 1)}: loss {loss:.2f}, {num_ranks * count / seconds:,.0f} images/s")
    if num_ranks > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
