"""Raw layouts. Each public module here has `open_source(root, recipe)`; its name is a choice of the key `source`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import cast

from precompile.errors import RecipeError, SourceError, StorageError
from precompile.pipeline import plugins
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import Source
from precompile.pipeline.sources._files import Files
from precompile.pipeline.sources._folders import open_folder
from precompile.pipeline.sources._media import AUDIO, IMAGE, SUFFIXES, TABLE_SUFFIXES, suffix_of
from precompile.pipeline.sources._walk import Tree, describe, walk


def open_source(root: Path, recipe: Recipe) -> Source:
    """The raw dataset at `root`, of the kind `recipe.source` or, for `auto`, of the kind found by looking.

    Raises SourceError when nothing is there or nothing is known, RecipeError when the kind is ambiguous or a key
    does not fit the data, StorageError when a folder cannot be read.
    """
    root = Path(root).absolute()
    try:
        root.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise SourceError(f"{root}: no such file or folder") from None
    except OSError as error:
        raise StorageError(f"{root}: cannot be read: {error.strerror}") from error
    if recipe.table is not None and recipe.source not in ("auto", "table"):
        raise RecipeError(f"table={recipe.table} needs source=table, got source={recipe.source}")
    if recipe.source != "auto":
        return _open(recipe.source, root, recipe)
    if recipe.table is not None or (root.is_file() and root.suffix.lower() in TABLE_SUFFIXES):
        return _open("table", root, recipe)
    if not root.is_dir():
        raise SourceError(f"{root}: must be a folder or a table ({', '.join(TABLE_SUFFIXES)})")
    tree = walk(root)
    return cast(Source, open_folder(_media(root, tree), root, recipe, tree))


def _open(name: str, root: Path, recipe: Recipe) -> Source:
    source: Source = plugins.load("sources", name).open_source(root, recipe)
    return source


def _media(root: Path, tree: Tree) -> str:
    """The one media of a folder tree."""
    images, audio = tree.files[IMAGE], tree.files[AUDIO]
    if len(images) and len(audio):
        raise RecipeError(
            f"{root}: {len(images)} image files ({_suffixes(images)}) and {len(audio)} audio "
            f"files ({_suffixes(audio)}); choose --source image_folder or --source audio_folder"
        )
    if not len(images) and not len(audio):
        if not tree.left_out:
            raise SourceError(f"{root}: the folder is empty, expected image or audio files")
        found = describe(tree.left_out)
        raise SourceError(f"{root}: no image or audio file found, only {found}; {_known(tree.left_out)}")
    return IMAGE if len(images) else AUDIO


def _suffixes(files: Files) -> str:
    return describe(Counter(map(suffix_of, files.paths())))


def _known(left_out: Counter[str]) -> str:
    known = "; ".join(f"{media}: {' '.join(sorted(suffixes))}" for media, suffixes in SUFFIXES.items())
    has_table = any(left_out[suffix] for suffix in TABLE_SUFFIXES)
    return f"known suffixes are {known}" + "; to compile the rows of a table, give its path" * has_table
