"""Finding a source, engine, feature or writer by its bare module name."""

from __future__ import annotations

import importlib
import pkgutil
import re
from types import ModuleType

from precompile.errors import RecipeError


def choices(kind: str) -> tuple[str, ...]:
    """The module names in `precompile/pipeline/<kind>/`, sorted; names with a leading underscore are private."""
    package = importlib.import_module(f"precompile.pipeline.{kind}")
    return tuple(
        sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))
    )


def load(kind: str, name: str) -> ModuleType:
    """The module `precompile.pipeline.<kind>.<name>`.

    Only a bare `[a-z_]+` name of an existing module is accepted: names come from manifests, which are
    untrusted. Raises RecipeError with the choices.
    """
    if not re.fullmatch(r"[a-z_]+", name) or name not in choices(kind):
        raise RecipeError(f"no {kind.rstrip('s')} named {name!r}; choose from {', '.join(choices(kind))}")
    return importlib.import_module(f"precompile.pipeline.{kind}.{name}")
