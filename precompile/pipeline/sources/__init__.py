"""Raw layouts. Each public module here has `open_source(root, recipe)`; its name is a choice of the key `source`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from precompile.errors import RecipeError, SourceError, StorageError
from precompile.pipeline import plugins
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import Source
from precompile.pipeline.sources._media import AUDIO, IMAGE, SUFFIXES, TABLE_SUFFIXES, suffix_of
from precompile.pipeline.sources._walk import describe, walk


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
    name = _kind(root, recipe) if recipe.source == "auto" else recipe.source
    source: Source = plugins.load("sources", name).open_source(root, recipe)
    return source


def _kind(root: Path, recipe: Recipe) -> str:
    if recipe.table is not None:
        return "table"
    if not root.is_dir():
        if root.is_file() and root.suffix.lower() in TABLE_SUFFIXES:
            return "table"
        raise SourceError(f"{root}: must be a folder or a table ({', '.join(TABLE_SUFFIXES)})")
    found: dict[str, Counter[str]] = {IMAGE: Counter(), AUDIO: Counter()}
    left_out: Counter[str] = Counter()
    for folder in walk(root):
        left_out.update(folder.left_out)
        for media, names in folder.files.items():
            found[media].update(map(suffix_of, names))
    if found[IMAGE] and found[AUDIO]:
        raise RecipeError(
            f"{root}: {found[IMAGE].total()} image files ({describe(found[IMAGE])}) and {found[AUDIO].total()} audio "
            f"files ({describe(found[AUDIO])}); choose --source image_folder or --source audio_folder"
        )
    if not found[IMAGE] and not found[AUDIO]:
        if not left_out:
            raise SourceError(f"{root}: the folder is empty, expected image or audio files")
        raise SourceError(f"{root}: no image or audio file found, only {describe(left_out)}; {_known(left_out)}")
    return "image_folder" if found[IMAGE] else "audio_folder"


def _known(left_out: Counter[str]) -> str:
    known = "; ".join(f"{media}: {' '.join(sorted(suffixes))}" for media, suffixes in SUFFIXES.items())
    has_table = any(left_out[suffix] for suffix in TABLE_SUFFIXES)
    return f"known suffixes are {known}" + "; to compile the rows of a table, give its path" * has_table
