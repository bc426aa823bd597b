"""What to compile, and how: every option that changes the result, validated once."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from precompile.errors import RecipeError

PositiveInt = Annotated[int, Field(ge=1)]


def _size(value: Any) -> Any:
    """`256`, `"256"`, `"224x320"` (height x width) or a pair."""
    if isinstance(value, str):
        parts = value.lower().split("x")
        if len(parts) in (1, 2) and all(part.strip().isascii() and part.strip().isdigit() for part in parts):
            numbers = tuple(int(part) for part in parts)
            return numbers[0] if len(numbers) == 1 else numbers
        raise ValueError("must be N or HxW")
    return tuple(value) if isinstance(value, list) else value


def _features(value: Any) -> Any:
    """`"mel"`, `"mel,waveform"` and `["mel"]` are short for `{"mel": {}}`."""
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",") if name.strip()]
    return {name: {} for name in value} if isinstance(value, list | tuple) else value


def _names(value: Any) -> Any:
    if isinstance(value, str) and value not in ("auto", "none"):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return tuple(value) if isinstance(value, list) else value


Names = tuple[str, ...]

LISTING_KEYS = frozenset({
    "source", "splits", "classes", "media", "table", "path_column", "path_format", "label_column", "split_column",
    "path_prefix", "path_suffix", "missing",
})  # fmt: skip
"""Keys that say which files there are and how they are called and labelled; the others make the stored bytes."""


class Recipe(BaseModel):
    """All keys that change what is stored. An unknown key is an error; TOML, `--set` and keywords use these names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Annotated[
        str, Field(pattern=r"^[a-z_]+$", description="auto (found by looking), image_folder, audio_folder or table")
    ] = "auto"
    splits: Annotated[
        Literal["auto", "none"] | Names,
        BeforeValidator(_names),
        Field(description="split folders: auto (well-known names), none, or their names with commas"),
    ] = "auto"
    classes: Annotated[
        Names | None,
        BeforeValidator(_names),
        Field(description="class names in the order of their labels, with commas; default: all that there are, sorted"),
    ] = None
    media: Annotated[
        Literal["auto", "image", "audio"], Field(description="table: what the files are; auto: by their suffixes")
    ] = "auto"
    table: Annotated[str | None, Field(description="path of the table below SOURCE, when SOURCE is its folder")] = None
    path_column: Annotated[str | None, Field(description="table: the column with paths (default: found by name)")] = (
        None
    )
    path_format: Annotated[
        str | None, Field(description="table: makes the path of columns, such as audio/fold{fold}/{file}.wav")
    ] = None
    label_column: Annotated[str | None, Field(description="table: the column with labels (default: found by name)")] = (
        None
    )
    split_column: Annotated[str | None, Field(description="table: the column with splits (default: `split`)")] = None
    path_prefix: Annotated[
        str, Field(description="table: folder that the paths are relative to, itself relative to SOURCE")
    ] = ""
    path_suffix: Annotated[str, Field(description="table: appended to each path, such as .jpg")] = ""
    missing: Annotated[
        Literal["error", "quarantine"],
        Field(description="table: rows whose file does not exist are an error, or go to the quarantine"),
    ] = "error"

    store: Annotated[
        Literal["lmdb", "flat", "tmpfs"], Field(description="kind of shard; tmpfs is flat on a RAM disk")
    ] = "lmdb"
    encoding: Annotated[
        Literal["raw", "bmp"],
        Field(description="how an image is stored: raw is its pixels alone, bmp a whole .bmp file"),
    ] = "raw"
    layout: Annotated[Literal["CHW", "HWC"], Field(description="images: axis order, of channels, height and width")] = (
        "CHW"
    )
    order: Annotated[
        Literal["shuffled", "source"],
        Field(description="how samples are placed in shards; what is read has the order of the source"),
    ] = "shuffled"
    seed: Annotated[int, Field(ge=0, description="number from which order=shuffled is made")] = 0
    shard_size: Annotated[
        PositiveInt | None, Field(description="bytes of a shard; default: about 64 shards of at least 4 MiB")
    ] = None

    engine: Annotated[
        str, Field(pattern=r"^[a-z_]+$", description="images: exact (Pillow) or fast (OpenCV, torch)")
    ] = "exact"
    size: Annotated[
        PositiveInt | tuple[PositiveInt, PositiveInt] | None,
        BeforeValidator(_size),
        Field(description="images: N (see fit=short) or HxW; default: untouched"),
    ] = None
    fit: Annotated[
        Literal["short", "exact", "pad", "stretch"],
        Field(
            description="images: short is shorter side N; exact covers HxW and cuts, pad letterboxes, stretch squeezes"
        ),
    ] = "short"
    crop: Annotated[
        PositiveInt | None, Field(description="images: pixels, side of the center crop, after resizing")
    ] = None
    max_side: Annotated[PositiveInt | None, Field(description="images: pixels, upper limit of the longer side")] = None
    filter: Annotated[
        Literal["bilinear", "bicubic", "lanczos", "box"],
        Field(description="images: how they are resized, always antialiased"),
    ] = "bilinear"
    parity: Annotated[
        Literal["torchvision"] | None,
        Field(description="images: torchvision ignores EXIF orientation and clips 16-bit gray, as ImageFolder does"),
    ] = None
    background: Annotated[
        tuple[int, int, int] | None,
        BeforeValidator(_names),
        Field(description="images: R,G,B from 0 to 255 below transparent ones; default: drop alpha as Pillow does"),
    ] = None
    max_pixels: Annotated[PositiveInt, Field(description="images: pixels; larger ones are quarantined")] = 178_956_970

    features: Annotated[
        dict[str, dict[str, Any]] | None,
        BeforeValidator(_features),
        Field(description="audio: mel, waveform, or both with a comma; their parameters are keys too; default: mel"),
    ] = None
    sample_rate: Annotated[
        PositiveInt | None,
        Field(description="audio: Hz to resample to; default: that of the files, which must be the same for all"),
    ] = None
    channels: Annotated[
        Literal["mix", "left", "right", "keep"],
        Field(description="audio: which channels; mix is their mean, keep all (waveform only)"),
    ] = "mix"
    dtype: Annotated[
        Literal["uint8", "int16", "float16", "float32"] | None,
        Field(description="element type; default: uint8 images, float16 mel (float32 with log=none), float32 waveform"),
    ] = None

    @model_validator(mode="after")
    def _unique_classes(self) -> Recipe:
        names = list(self.classes or ())
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"classes must be unique, got {name!r} twice")
        return self

    @model_validator(mode="after")
    def _together(self) -> Recipe:
        if self.fit != "short" and self.size is None:
            raise ValueError(f"fit={self.fit} needs size")
        if self.fit == "short" and isinstance(self.size, tuple):
            raise ValueError(
                f"fit=short needs size=N (the shorter side), got size={self.size[0]}x{self.size[1]}; "
                "choose fit=exact, pad or stretch"
            )
        if self.path_format is not None and self.path_column is not None:
            raise ValueError("path_format and path_column exclude each other: both say where the paths are")
        if self.encoding == "bmp" and self.layout != "CHW":
            raise ValueError("layout=HWC needs encoding=raw")
        if self.max_side is not None and isinstance(self.size, int) and self.max_side < self.size:
            raise ValueError(f"max_side must be at least size, got max_side={self.max_side}, size={self.size}")
        return self

    @property
    def digest(self) -> str:
        """32 hex digits over all keys; equal digests of equal sources give equal bytes."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def content_digest(self) -> str:
        """32 hex digits over the keys that change what is stored of one file. Keys at their default do not enter it,
        so that a key which a later version adds changes nothing."""
        keys = self.model_dump(mode="json", exclude=set(LISTING_KEYS), exclude_defaults=True)
        return hashlib.blake2b(json.dumps(keys, sort_keys=True).encode(), digest_size=16).hexdigest()


def make_recipe(**keys: Any) -> Recipe:
    """Validate recipe keys. Raises RecipeError, one line that names the key, the value and the choices."""
    for key in keys:
        if key not in Recipe.model_fields:
            raise RecipeError(f"unknown recipe key {key!r}; choose from {', '.join(sorted(Recipe.model_fields))}")
    try:
        return Recipe(**keys)
    except ValidationError as error:
        raise RecipeError(_one_line(error)) from None


def _one_line(error: ValidationError) -> str:
    first = error.errors()[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    message = first["msg"].removeprefix("Value error, ")
    if not key:
        return message
    meaning = Recipe.model_fields[key].description
    return f"{key}: {message[0].lower()}{message[1:]}, got {key}={first['input']!r} ({meaning})"


def read_toml(path: Path) -> dict[str, Any]:
    """The keys of a recipe file. Raises RecipeError when it cannot be read."""
    try:
        keys = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe file") from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise RecipeError(f"{path}: nested too deeply") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not TOML: {error}") from None
    return keys


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` wins, key by key; tables are merged, so `features.mel.num_mels` changes one parameter only."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
