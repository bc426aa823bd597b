"""Log-mel spectrograms: torchaudio.transforms.MelSpectrogram, then a logarithm."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from precompile.errors import ContentError, RecipeError
from precompile.format.schema import FieldSpec
from precompile.pipeline.features import _parameters as check
from precompile.pipeline.features._parameters import parameter
from precompile.pipeline.recipe import Recipe

if TYPE_CHECKING:
    import torch
    import torchaudio

DTYPES = ("float16", "float32")


@dataclass(frozen=True, slots=True)
class Mel:
    """waveform (1, samples) -> (num_mels, frames). Raises RecipeError when a parameter is out of its bounds.

    Names and meaning are those of torchaudio.transforms.MelSpectrogram. Clips shorter than n_fft samples are
    padded with zeros to n_fft. With `center` there are 1 + samples // hop_length frames, without it
    1 + (samples - n_fft) // hop_length.
    """

    sample_rate: int | None = None
    """Hz; None takes each file's own."""
    n_fft: int = parameter(400, "samples of a Fourier transform")
    win_length: int | None = parameter(None, "samples of the window, at most n_fft; none: n_fft")
    hop_length: int = parameter(160, "samples from one frame to the next")
    num_mels: int = parameter(80, "mel bins")
    f_min: float = parameter(0.0, "Hz, lower end of the lowest mel bin")
    f_max: float | None = parameter(None, "Hz, upper end of the highest mel bin; none: half the sample rate")
    power: float = parameter(2.0, "exponent of the magnitude: 2 is power, 1 magnitude")
    mel_scale: str = parameter("htk", "htk or slaney")
    norm: str | None = parameter(None, "none, or slaney: triangles of equal area")
    log: str = parameter(
        "ln", "ln: ln(max(x, log_floor)); db: (20 / power) * log10 of it, as torchaudio's amplitude_to_DB; none: x"
    )
    log_floor: float = parameter(1e-10, "smallest value that the logarithm sees")
    top_db: float | None = parameter(None, "dB below the clip's maximum where values are cut off, with log=db")
    center: bool = parameter(
        True, "true: frame t is centered at t * hop_length, with reflection at both ends; false: it starts there"
    )
    dtype: str = parameter("float16", "float16 or float32; default: the key dtype, float32 with log=none")

    def __post_init__(self) -> None:
        check.check_integer("n_fft", self.n_fft, 2)
        if self.win_length is not None:
            check.check_integer("win_length", self.win_length, 1, self.n_fft)
        check.check_integer("hop_length", self.hop_length, 1)
        check.check_integer("num_mels", self.num_mels, 1)
        check.check_number("f_min", self.f_min, 0)
        check.check_number("power", self.power, 0, above=True)
        check.check_number("log_floor", self.log_floor, 0, above=True)
        check.check_choice("mel_scale", self.mel_scale, ("htk", "slaney"))
        check.check_choice("norm", self.norm, (None, "slaney"))
        check.check_choice("log", self.log, ("ln", "db", "none"))
        check.check_choice("center", self.center, (True, False))
        check.check_choice("dtype", self.dtype, DTYPES)
        if self.f_max is not None:
            check.check_number("f_max", self.f_max, self.f_min, above=True)
        if self.top_db is not None:
            check.check_number("top_db", self.top_db, 0)
            if self.log != "db":
                raise RecipeError(f"top_db={self.top_db:g} needs log=db, got log={self.log}")
        if self.log == "none" and self.dtype == "float16":
            raise RecipeError("log=none needs dtype=float32: linear power does not fit float16")
        if self.sample_rate is not None and self._top(self.sample_rate) <= self.f_min:
            raise RecipeError(
                f"f_min must be below {self.sample_rate / 2:g} Hz, half the sample rate, got f_min={self.f_min:g}"
            )
        if self.sample_rate is not None and self._top(self.sample_rate) > self.sample_rate / 2:
            raise RecipeError(
                f"f_max must be at most {self.sample_rate / 2:g} Hz, half the sample rate, got f_max={self.f_max:g}"
            )

    def spec(self) -> FieldSpec:
        """(num_mels, frames)"""
        linear = {2.0: "power", 1.0: "magnitude"}.get(self.power, f"magnitude^{self.power:g}")
        unit = {"ln": f"ln {linear}", "db": "dB", "none": linear}[self.log]
        return FieldSpec("spectrogram", self.dtype, (self.num_mels, None), unit=unit)

    def load(self) -> None:
        """Import torchaudio."""
        import torchaudio  # noqa: F401

    def __call__(self, waveform: np.ndarray, sample_rate: int) -> np.ndarray:
        """float32 (1, samples), Hz -> (num_mels, frames) of `dtype`, contiguous, finite; else ContentError."""
        assert waveform.shape[0] == 1, waveform.shape
        assert self.sample_rate in (None, sample_rate), (self.sample_rate, sample_rate)
        if not self.f_min < self._top(sample_rate) <= sample_rate / 2:
            raise ContentError(
                f"mel bands from {self.f_min:g} to {self._top(sample_rate):g} Hz do not fit a rate of {sample_rate} Hz",
                stage="transform",
            )
        import torch  # loaded in workers only

        samples = torch.from_numpy(np.ascontiguousarray(waveform[0]))
        samples = torch.nn.functional.pad(samples, (0, max(0, self.n_fft - len(samples))))
        with torch.inference_mode(), np.errstate(over="ignore"):
            result = self._compressed(_transform(self, sample_rate)(samples)).numpy().astype(self.dtype)
        if not np.isfinite(result).all():
            raise ContentError(f"the spectrogram exceeds the range of {self.dtype}", stage="transform")
        return np.ascontiguousarray(result)

    def _compressed(self, mel: torch.Tensor) -> torch.Tensor:
        if self.log == "none":
            return mel
        if self.log == "ln":
            return mel.clamp(min=self.log_floor).log()
        import torchaudio

        decibels: torch.Tensor = torchaudio.functional.amplitude_to_DB(
            mel, 20 / self.power, self.log_floor, 0.0, self.top_db
        )
        return decibels

    def _top(self, sample_rate: int) -> float:
        return sample_rate / 2 if self.f_max is None else self.f_max


@functools.lru_cache(maxsize=16)
def _transform(mel: Mel, sample_rate: int) -> torchaudio.transforms.MelSpectrogram:
    import torchaudio

    return torchaudio.transforms.MelSpectrogram(
        sample_rate=sample_rate,
        n_fft=mel.n_fft,
        win_length=mel.win_length,
        hop_length=mel.hop_length,
        f_min=mel.f_min,
        f_max=mel.f_max,
        n_mels=mel.num_mels,
        power=mel.power,
        center=mel.center,
        norm=mel.norm,
        mel_scale=mel.mel_scale,
    )


def make(recipe: Recipe, parameters: Mapping[str, Any]) -> Mel:
    """Parameters: the fields of Mel, except sample_rate, which is the recipe's. Raises RecipeError.

    dtype is float16 unless the recipe says float32, or nothing is said and log=none.
    """
    check.check_names("mel", parameters, {field.name for field in fields(Mel)} - {"sample_rate"})
    if recipe.channels == "keep":
        raise RecipeError("mel needs one channel: choose channels=mix, left or right, got channels=keep")
    default = "float32" if parameters.get("log") == "none" else "float16"
    dtype = recipe.dtype if recipe.dtype in DTYPES else default
    return Mel(sample_rate=recipe.sample_rate, **{"dtype": dtype, **parameters})
