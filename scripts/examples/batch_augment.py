"""Augmentations of a whole batch on its device, with one draw per sample. Plain torch: copy what you need.

Every function takes a torch.Generator on the device of the batch, and returns new memory.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional


def per_sample(batch: torch.Tensor, low: float, high: float, generator: torch.Generator) -> torch.Tensor:
    """One number from [low, high) for each sample: float32 (batch, 1, 1, 1)."""
    return low + (high - low) * torch.rand(len(batch), 1, 1, 1, device=batch.device, generator=generator)


def random_flip(images: torch.Tensor, generator: torch.Generator, *, p: float = 0.5) -> torch.Tensor:
    """(batch, channels, height, width) of any dtype, each mirrored left to right with probability `p`."""
    return torch.where(per_sample(images, 0, 1, generator) < p, images.flip(-1), images)


def gray(images: torch.Tensor) -> torch.Tensor:
    """(batch, 3, height, width) -> (batch, 1, height, width): the luma of Pillow and torchvision."""
    red, green, blue = images.split(1, dim=1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def color_jitter(
    images: torch.Tensor,
    generator: torch.Generator,
    *,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
) -> torch.Tensor:
    """float32 (batch, 3, height, width) in [0, 1] -> the same. A strength of 0.4 draws factors from [0.6, 1.4).

    The formulas of torchvision, always in this order; torchvision shuffles the order.
    """
    images = (images * per_sample(images, 1 - brightness, 1 + brightness, generator)).clamp_(0, 1)
    mean = gray(images).mean((2, 3), keepdim=True)
    images = mean.lerp(images, per_sample(images, 1 - contrast, 1 + contrast, generator)).clamp_(0, 1)
    return gray(images).lerp(images, per_sample(images, 1 - saturation, 1 + saturation, generator)).clamp_(0, 1)


def random_resized_crop(
    images: torch.Tensor,
    size: int,
    generator: torch.Generator,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> torch.Tensor:
    """float32 (batch, channels, height, width) -> (batch, channels, size, size): a part of each image, resized.

    `scale` is the part's share of the area, `ratio` its width by its height, drawn evenly in the logarithm. A part
    that is too wide or too high is cut to the image; torchvision draws again. Bilinear without antialiasing.
    """
    count, channels, height, width = images.shape
    area = per_sample(images, *scale, generator)
    aspect = per_sample(images, math.log(ratio[0]), math.log(ratio[1]), generator).exp()
    across = (area * aspect * height / width).sqrt().clamp(max=1)
    down = (area / aspect * width / height).sqrt().clamp(max=1)
    x = (1 - across) * per_sample(images, -1, 1, generator)
    y = (1 - down) * per_sample(images, -1, 1, generator)
    zero = torch.zeros_like(x)
    theta = torch.cat([across, zero, x, zero, down, y], dim=1).view(count, 2, 3)
    grid = functional.affine_grid(theta, [count, channels, size, size], align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def mixup(
    images: torch.Tensor, labels: torch.Tensor, num_classes: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each image blended with another one, by a weight of its own: images, and float32 (batch, num_classes) targets.

    torch.nn.functional.cross_entropy takes such targets. The weights are even in [0, 1), which is Beta(1, 1).
    """
    other = torch.randperm(len(images), device=images.device, generator=generator)
    weights = per_sample(images, 0, 1, generator)
    targets = functional.one_hot(labels, num_classes).float()
    return images.lerp(images[other], weights), targets.lerp(targets[other], weights.view(-1, 1))


def random_spans(lengths: torch.Tensor, longest: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
    """bool (batch, size): in each row one run of 0 to longest[i] places, inside the first lengths[i]."""
    draws = torch.rand(2, len(lengths), 1, device=lengths.device, generator=generator)
    width = (draws[0] * (longest[:, None] + 1)).long()
    start = (draws[1] * (lengths[:, None] - width + 1)).long()
    places = torch.arange(size, device=lengths.device)
    return (start <= places) & (places < start + width)


def spec_augment(
    spectrograms: torch.Tensor,
    lengths: torch.Tensor,
    generator: torch.Generator,
    *,
    num_masks: int = 2,
    max_bins: int = 27,
    max_frames: int = 100,
    max_share: float = 0.2,
) -> torch.Tensor:
    """Float (batch, bins, frames) with `num_masks` stripes of bins and as many of frames set to 0 in each sample.

    Normalise first: then 0 is the mean. Stripes of frames lie inside `lengths`, int64 (batch,), and each covers at
    most `max_frames` and at most `max_share` of it.
    """
    num_bins, num_frames = spectrograms.shape[1:]
    bins = torch.full_like(lengths, num_bins)
    longest = (lengths * max_share).long().clamp(max=max_frames)
    for _ in range(num_masks):
        stripes = random_spans(bins, bins.clamp(max=max_bins), num_bins, generator)[:, :, None]
        stripes = stripes | random_spans(lengths, longest, num_frames, generator)[:, None, :]
        spectrograms = spectrograms.masked_fill(stripes, 0)
    return spectrograms
