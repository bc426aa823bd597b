"""Audio files in class folders, with or without split folders above them, or flat."""

from __future__ import annotations

from pathlib import Path

from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sources._folders import open_folder
from precompile.pipeline.sources._listing import FolderSource
from precompile.pipeline.sources._media import AUDIO


def open_source(root: Path, recipe: Recipe) -> FolderSource:
    """Samples with `audio` (a Path) and, when there are class folders, `label`, ordered as ImageFolder does.

    Raises SourceError, RecipeError or StorageError.
    """
    return open_folder(AUDIO, root, recipe)
