"""Audio files with libsndfile -> waveforms: read to their real end, channels reduced by rule, resampled when asked."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import soundfile

from precompile.errors import ContentError, RecipeError
from precompile.format.schema import FieldSpec
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import Decoded

CHANNELS = ("mix", "left", "right", "keep")
_BLOCK_FRAMES = 65_536
_MAX_KERNEL_ELEMENTS = 1 << 24
"""64 MiB of float32; common rates need less than a million, unrelated ones such as 44101 to 16000 Hz 700 million."""


@dataclass(frozen=True, slots=True)
class Audio:
    """bytes -> float32 (channels, samples), full scale [-1, 1] (float files may exceed it)."""

    sample_rate: int | None = None
    """Hz to resample to with torchaudio.functional.resample; None keeps each file's own."""
    channels: str = "mix"
    """`mix`: their mean. `left`, `right`: the first, the second (of mono: the only one). `keep`: all."""

    def __post_init__(self) -> None:
        if self.sample_rate is not None and self.sample_rate < 1:
            raise RecipeError(f"sample_rate must be at least 1 Hz, got sample_rate={self.sample_rate}")
        if self.channels not in CHANNELS:
            raise RecipeError(f"channels must be one of {', '.join(CHANNELS)}, got channels={self.channels!r}")

    def spec(self) -> FieldSpec:
        """float32 (1, samples), or (channels, samples) when all are kept."""
        channels = None if self.channels == "keep" else 1
        return FieldSpec("waveform", "float32", (channels, None), unit="full scale [-1, 1]")

    def load(self) -> None:
        """Import torchaudio if clips are resampled."""
        if self.sample_rate is not None:
            import torchaudio  # noqa: F401

    def __call__(self, data: bytes) -> Decoded:
        """Columns: duration_seconds of what the file holds; sample_rate (Hz) and num_samples (a channel) of the array.

        Raises ContentError when nothing can be decoded, a sample is not finite, or the rate cannot be converted.
        """
        frames, file_rate = _read(data)
        rate = file_rate if self.sample_rate is None else self.sample_rate
        waveform = _resample(self._reduce(frames), file_rate, rate)
        if not np.isfinite(waveform).all():
            raise ContentError("samples are not finite (NaN or infinity)")
        columns = {"duration_seconds": len(frames) / file_rate, "sample_rate": rate, "num_samples": waveform.shape[1]}
        return Decoded(waveform, columns)

    def _reduce(self, frames: np.ndarray) -> np.ndarray:
        """float32 (frames, channels) -> contiguous (channels, samples)."""
        if self.channels == "left":
            frames = frames[:, :1]
        elif self.channels == "right":
            frames = frames[:, 1:2] if frames.shape[1] > 1 else frames
        waveform = np.ascontiguousarray(frames.T)
        return waveform.mean(axis=0, keepdims=True) if self.channels == "mix" and len(waveform) > 1 else waveform


class _Stream(soundfile.SoundFile):  # type: ignore[misc]
    """Read in order. Of a seekable file soundfile trusts the frame count, and it seeks to each block's end."""

    def seekable(self) -> bool:
        return False


def _read(data: bytes) -> tuple[np.ndarray, int]:
    """float32 (frames, channels), and the rate in Hz. Blocks bound the memory by what is there: headers lie."""
    if not data:
        raise ContentError("empty file (0 bytes)")
    container = _unreadable_container(data)
    if container:
        raise ContentError(f"{container}: libsndfile cannot read it; convert it to WAV, FLAC, MP3 or OGG")
    blocks = []
    try:
        with _Stream(io.BytesIO(data)) as file:
            # soundfile.read does so too; in an MP3 it decides about the last bit of the samples.
            file.seek(0)
            while len(block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
                blocks.append(block)
            rate = file.samplerate
    except soundfile.LibsndfileError as error:
        raise ContentError(f"libsndfile: {error.error_string}") from error
    if not blocks:
        raise ContentError("no audio frames")
    return np.concatenate(blocks) if len(blocks) > 1 else blocks[0], rate


def _unreadable_container(data: bytes) -> str | None:
    if data[4:8] == b"ftyp":
        return "MP4 (m4a, AAC)"
    if data[:4] == b"\x1aE\xdf\xa3":
        return "Matroska (webm, mka)"
    if data[:1] == b"\xff" and len(data) > 1 and data[1] & 0xF6 == 0xF0:
        return "ADTS (aac)"
    return None


def _resample(waveform: np.ndarray, old: int, new: int) -> np.ndarray:
    if old == new:
        return waveform
    divisor = math.gcd(old, new)
    if (old // divisor) * (new // divisor) > _MAX_KERNEL_ELEMENTS:
        raise ContentError(f"cannot resample from {old} Hz to {new} Hz: the kernel is too large", stage="transform")
    return _resampler(old, new)(waveform)


@functools.lru_cache(maxsize=8)
def _resampler(old: int, new: int) -> Callable[[np.ndarray], np.ndarray]:
    """torchaudio.functional.resample for one pair of rates in Hz, with its kernel kept."""
    import torch  # only builds that resample pay for it
    from torchaudio.transforms import Resample

    # functional.resample computes the kernel in the waveform's dtype, Resample in float64 unless told.
    transform = Resample(old, new, dtype=torch.float32)
    return lambda waveform: np.ascontiguousarray(transform(torch.from_numpy(waveform)).numpy())


def make(recipe: Recipe) -> Audio:
    """Raises RecipeError for values out of range."""
    return Audio(recipe.sample_rate, recipe.channels)
