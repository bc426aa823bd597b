"""Small pictures and sounds with something to learn in them, and the usual way to read them on the fly."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "stripes")
TONES_HZ = {"low": 220.0, "middle": 660.0, "high": 1980.0}
SAMPLE_RATE = 16_000


def make_pictures(root: Path, *, count: int, seed: int = 0) -> Path:
    """`count` jpg of about 400x300 in `root/<split>/<shape>/`; every fifth is in `val`."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        shape = SHAPES[number % len(SHAPES)]
        folder = root / ("val" if number % 5 == 0 else "train") / shape
        folder.mkdir(parents=True, exist_ok=True)
        width, height = rng.integers(360, 440), rng.integers(270, 330)
        coarse = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((int(width), int(height)), Image.Resampling.BICUBIC)
        _draw(picture, shape, rng)
        picture.save(folder / f"{number:05d}.jpg", quality=90)
    return root


def _draw(picture: Image.Image, shape: str, rng: np.random.Generator) -> None:
    draw = ImageDraw.Draw(picture)
    x, y = rng.integers(90, picture.width - 90), rng.integers(90, picture.height - 90)
    radius = int(rng.integers(50, 85))
    box = [int(x) - radius, int(y) - radius, int(x) + radius, int(y) + radius]
    colour = tuple(rng.integers(0, 256, 3).tolist())
    if shape == "circle":
        draw.ellipse(box, fill=colour)
    elif shape == "square":
        draw.rectangle(box, fill=colour)
    else:
        for top in range(box[1], box[3], 16):
            draw.rectangle([box[0], top, box[2], top + 7], fill=colour)


def make_clips(root: Path, *, count: int, seed: int = 0) -> Path:
    """`count` wav of one second at 16 kHz, mono 16-bit, in `root/<tone>/`: a tone in noise."""
    rng = np.random.default_rng(seed)
    time_seconds = np.arange(SAMPLE_RATE) / SAMPLE_RATE
    for number in range(count):
        name = list(TONES_HZ)[number % len(TONES_HZ)]
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        frequency = TONES_HZ[name] * rng.uniform(0.8, 1.25)
        samples = 0.2 * np.sin(2 * np.pi * frequency * time_seconds) + 0.1 * rng.standard_normal(SAMPLE_RATE)
        soundfile.write(root / name / f"{number:05d}.wav", np.clip(samples, -1, 1), SAMPLE_RATE, subtype="PCM_16")
    return root


class RawPictures:
    """What people do today: decode, resize and crop each picture in a DataLoader worker."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch

        path = self.paths[index]
        picture = Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
        scale = 256 / min(picture.size)
        picture = picture.resize((int(picture.width * scale), int(picture.height * scale)), Image.Resampling.BILINEAR)
        left, top = (picture.width - 224) // 2, (picture.height - 224) // 2
        pixels = np.asarray(picture.crop((left, top, left + 224, top + 224))).transpose(2, 0, 1).copy()
        return torch.from_numpy(pixels), SHAPES.index(path.parent.name)


class RawClips:
    """What people do today: decode each clip and compute its spectrogram in a DataLoader worker."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.rglob("*.wav"))
        self._mel: Any = None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch
        import torchaudio

        if self._mel is None:
            self._mel = torchaudio.transforms.MelSpectrogram(SAMPLE_RATE, n_fft=400, hop_length=160, n_mels=80)
        path = self.paths[index]
        samples, _ = soundfile.read(io.BytesIO(path.read_bytes()), dtype="float32")
        return self._mel(torch.from_numpy(samples)).clamp(min=1e-10).log(), list(TONES_HZ).index(path.parent.name)
