from __future__ import annotations

import sys

import pytest

from precompile.errors import RecipeError
from precompile.pipeline import plugins


@pytest.mark.parametrize(
    ("kind", "some"),
    [
        ("sources", {"image_folder", "audio_folder", "table"}),
        ("engines", {"exact", "fast", "audio"}),
        ("features", {"mel", "waveform"}),
        ("writers", {"flat", "lmdb"}),
    ],
)
def test_choices_are_the_public_modules(kind: str, some: set[str]) -> None:
    choices = plugins.choices(kind)
    assert some <= set(choices)
    assert list(choices) == sorted(choices)
    assert not any(name.startswith("_") for name in choices)


def test_load_gives_the_module() -> None:
    assert plugins.load("writers", "flat") is sys.modules["precompile.pipeline.writers.flat"]


@pytest.mark.parametrize(
    "name", ["exakt", "", "_pillow", "os", "..build", "exact.make", "exact ", "Exact", "exact\n", "../exact", "éxact"]
)
def test_only_bare_names_of_public_modules_are_loaded(name: str) -> None:
    before = set(sys.modules)
    with pytest.raises(RecipeError, match=r"no engine named .*; choose from .*exact, fast"):
        plugins.load("engines", name)
    assert set(sys.modules) - before <= {"precompile.pipeline.engines"}
