"""Windows: crops of images and spans of spectrograms as memory reads, drawn per sample.

A window's draw is a function of (seed, epoch, sample number) alone, so it does not depend on threads, ranks or the
batch a sample comes in, and fields of one sample that have the same size get the same window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from precompile.format.schema import FieldSpec
from precompile.loading.reading.hashing import mix, random_words

_AXIS_NAMES = ("height", "width")


@dataclass(frozen=True, slots=True)
class Window:
    """A box of a fixed size in the last axes of an array field.

    random: whether it is drawn for each sample and epoch, uniformly over all places where it fits, or in the middle.
    pads: whether samples smaller than the window are padded with zeros behind their end, instead of refused.
    """

    random: ClassVar[bool]
    pads: ClassVar[bool] = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the window, along the last axes of the field."""
        raise NotImplementedError

    def check(self, spec: FieldSpec) -> None:
        """Raises ValueError when the field cannot have such a window."""
        axes = len(self.sizes)
        if len(spec.shape) < axes or spec.is_column:
            raise ValueError(f"{self} needs a field of at least {axes} axes, got {spec.name} of shape {spec.shape}")
        if spec.encoding == "bmp" and (self.pads or spec.shape[0] is None):
            raise ValueError(f"{self} needs encoding raw or raw_hwc, got {spec.name} {spec.shape} of encoding bmp")
        for size, stored in zip(self.sizes, spec.shape[-axes:]):
            if stored is not None and stored < size and not self.pads:
                raise ValueError(f"{self} is larger than field {spec.name} of shape {spec.shape}")

    def starts(self, room: np.ndarray, numbers: np.ndarray, *, seed: int, epoch: int) -> np.ndarray:
        """Where the window begins: int64 (n, axes), from 0 to `room`, int64 (n, axes), of the samples `numbers`.

        The middle is torchvision's: half the room, rounded half to even.
        """
        if not self.random:
            return np.rint(room / 2).astype(np.int64)
        return np.stack([_draw(room[:, axis], numbers, seed, epoch, axis) for axis in range(room.shape[1])], axis=1)


@dataclass(frozen=True, slots=True)
class CenterCrop(Window):
    """The middle `size` (one number, or height and width) of an image, as torchvision's CenterCrop cuts it."""

    size: int | tuple[int, int]
    random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair(self.size))

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.size  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class RandomCrop(CenterCrop):
    """A crop of `size` (one number, or height and width) at a place drawn for each sample and epoch."""

    random: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class CenterTimeWindow(Window):
    """The middle `num_frames` of the last axis: of a spectrogram, or samples of a waveform. Shorter ones are padded.

    Where the field's length varies the batch is Padded(data, lengths), with the true length of each.
    """

    num_frames: int
    random: ClassVar[bool] = False
    pads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _at_least_one("num_frames", self.num_frames)

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.num_frames,)


@dataclass(frozen=True, slots=True)
class RandomTimeWindow(CenterTimeWindow):
    """`num_frames` of the last axis, at a place drawn for each sample and epoch. Shorter samples are padded."""

    random: ClassVar[bool] = True


def windows_by_field(windows: Any, specs: list[FieldSpec]) -> dict[str, Window]:
    """What the user gave: None, one window for the first array field, or windows by field name. Checked."""
    if windows is None:
        return {}
    arrays = {spec.name: spec for spec in specs if not spec.is_column}
    if isinstance(windows, Window):
        if not arrays:
            raise ValueError(f"windows needs an array field among fields, got {', '.join(s.name for s in specs)}")
        windows = {next(iter(arrays)): windows}
    if not isinstance(windows, Mapping) or not all(isinstance(window, Window) for window in windows.values()):
        raise TypeError(
            f"windows must be a window such as RandomCrop(224), or a dict of them by field, got {windows!r}"
        )
    for name, window in windows.items():
        if name not in arrays:
            raise ValueError(f"windows must name array fields among {', '.join(arrays) or 'none'}, got {name!r}")
        window.check(arrays[name])
    return dict(windows)


def _draw(room: np.ndarray, numbers: np.ndarray, seed: int, epoch: int, axis: int) -> np.ndarray:
    """int64 (n,), uniform from 0 to room inclusive: 32 hashed bits, scaled (Lemire, ACM TOMACS 2019, no rejection)."""
    key = random_words(1, seed, epoch, axis)
    bits = mix(mix(numbers.astype(np.uint64) + key) ^ key) >> np.uint64(32)
    return ((bits * (room + 1).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def _pair(size: Any) -> tuple[int, int]:
    pair = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if len(pair) != 2:
        raise ValueError(f"size must be a number or (height, width), got size={size!r}")
    for name, side in zip(_AXIS_NAMES, pair):
        _at_least_one(name, side)
    return pair


def _at_least_one(name: str, value: Any) -> None:
    if type(value) is not int or not 1 <= value < 1 << 31:
        raise ValueError(f"{name} must be an integer of at least 1, got {name}={value!r}")
