"""The bytes of one file -> the arrays and columns of its samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from precompile.errors import ContentError, RecipeError
from precompile.format.schema import FieldSpec
from precompile.pipeline import plugins
from precompile.pipeline.features import make_features
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import Engine, Feature, Scalar

_IMAGE_KEYS = ("size", "crop", "max_side", "parity", "background")
_AUDIO_KEYS = ("features", "sample_rate")


@dataclass(frozen=True, slots=True)
class CompiledSample:
    """One sample before it is a record."""

    arrays: Mapping[str, np.ndarray]
    columns: Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class SampleCompiler:
    """Engine and features of one recipe. Deterministic, picklable; used by one thread at a time."""

    engine: Engine
    features: tuple[Feature, ...]

    @property
    def fields(self) -> tuple[FieldSpec, ...]:
        """The array fields that come out, in order."""
        return tuple(part.spec() for part in self.features) or (self.engine.spec(),)

    def load(self) -> None:
        """Import all that calls will need."""
        self.engine.load()
        for feature in self.features:
            feature.load()

    def __call__(self, data: bytes) -> CompiledSample:
        """Raises ContentError, or whatever a decoder raises, when the content cannot be compiled."""
        if not data:
            raise ContentError("empty file (0 bytes)", stage="read")
        decoded = self.engine(data)
        if not self.features:
            return CompiledSample({self.engine.spec().name: decoded.array}, decoded.columns)
        rate = decoded.columns["sample_rate"]
        assert isinstance(rate, int)
        try:
            arrays = {feature.spec().name: feature(decoded.array, rate) for feature in self.features}
        except ContentError:
            raise
        except Exception as error:
            raise ContentError(f"{type(error).__name__}: {error}", stage="transform") from error
        return CompiledSample(arrays, decoded.columns)


def make_compiler(recipe: Recipe, media: str) -> SampleCompiler:
    """Raises RecipeError when a key does not fit the media."""
    foreign = _AUDIO_KEYS if media == "image" else _IMAGE_KEYS
    for key in foreign:
        if getattr(recipe, key) is not None:
            other = "audio" if media == "image" else "images"
            raise RecipeError(f"{key} is for {other}, but the source holds {media} files; leave it out")
    if media == "audio":
        if recipe.encoding != "raw":
            raise RecipeError(f"encoding must be raw for audio, got {recipe.encoding}")
        engine: Engine = plugins.load("engines", "audio").make(recipe)
        return SampleCompiler(engine, make_features(recipe))
    if recipe.dtype not in (None, "uint8"):
        raise RecipeError(f"dtype must be uint8 for images, got dtype={recipe.dtype}")
    if recipe.engine == "audio":
        raise RecipeError("engine must be exact or fast for images, got engine=audio")
    return SampleCompiler(plugins.load("engines", recipe.engine).make(recipe), ())


def resolved_parameters(compiler: SampleCompiler) -> dict[str, Any]:
    """All parameters of the engine and the features, for the manifest."""
    return {"engine": _parameters(compiler.engine), "features": [_parameters(feature) for feature in compiler.features]}


def _parameters(part: Any) -> dict[str, Any]:
    values = {name: _plain(getattr(part, name)) for name in getattr(part, "__dataclass_fields__", {})}
    return {"name": type(part).__module__.rsplit(".", 1)[-1], **values}


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
