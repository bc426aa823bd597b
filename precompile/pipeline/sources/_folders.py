"""Class folders and split folders: what torchvision's ImageFolder reads, for any media.

Layouts: `root/<class>/**/x`, `root/<split>/<class>/**/x`, `root/<split>/x` and `root/x`. One class map holds for
all splits, so a class that is missing in one of them shifts no label.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from precompile.errors import RecipeError, SourceError
from precompile.format.index import Column
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sample import Listing
from precompile.pipeline.sources._files import Files
from precompile.pipeline.sources._listing import FolderSource, split_text
from precompile.pipeline.sources._media import SUFFIXES
from precompile.pipeline.sources._walk import Tree, describe, walk

SPLIT_NAMES = frozenset({
    "train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval", "evaluation",
})  # fmt: skip
"""Well-known names of split folders, in lower case."""
NO_SPLIT = "all"


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the path of a folder tells split and class."""

    splits: frozenset[str] | None
    """The split folders; None when class folders lie directly in the root."""
    classes: frozenset[tuple[str, str]]
    """(split, class) of every class folder."""

    @classmethod
    def of(cls, paths: list[str], splits: frozenset[str] | None) -> _Layout:
        parts = [tuple(path.split("/")) for path in paths if path]
        if splits is None:
            return cls(None, frozenset((NO_SPLIT, part[0]) for part in parts))
        return cls(splits, frozenset((part[0], part[1]) for part in parts if len(part) > 1 and part[0] in splits))

    def place(self, path: str) -> tuple[str, str | None] | str:
        """(split, class) of the files in a folder, class None in a flat one; or the reason to leave them out."""
        parts = path.split("/") if path else []
        split = NO_SPLIT
        if self.splits is not None:
            if not parts:
                return "beside split folders"
            split, *parts = parts
            if split not in self.splits:
                return "not a split"
        if parts:
            return split, parts[0]
        return "beside class folders" if any(split == other for other, _ in self.classes) else (split, None)


class _Place(NamedTuple):
    """Where a folder with planned files belongs. Sorts as torchvision does."""

    split: str
    class_name: str
    """Empty for none."""
    path: str
    number: int
    """Among the folders of the files."""


def open_folder(media: str, root: Path, recipe: Recipe, tree: Tree | None = None) -> FolderSource:
    """The files of one media below `root`; others are left out and counted by suffix.

    tree: what `walk(root)` found, if that is known. Within a split the order is torchvision's: classes, then
    folders, then names, each sorted as text; splits are sorted as text too. Raises SourceError when nothing is
    planned, RecipeError when `splits` or `classes` do not fit the folders, StorageError when a folder cannot be listed.
    """
    root = root.absolute()
    if not root.is_dir():
        raise SourceError(f"{root}: {media}_folder needs a folder, got a file")
    tree = walk(root, [media]) if tree is None else tree
    top_folders = frozenset(path for path in tree.folders if path and "/" not in path)
    layout = _Layout.of(tree.folders, _split_folders(root, top_folders, recipe))
    classes = _classes(layout, recipe)
    files, left_out = tree.files[media], tree.left_out.copy()
    planned: list[_Place] = []
    for number, path in enumerate(files.folders):
        place = layout.place(path)
        if isinstance(place, str):
            left_out[place] += files.count(number)
        else:
            planned.append(_Place(place[0], place[1] or "", path, number))
    if not planned:
        raise SourceError(f"{root}: no {media} file found, only {describe(left_out)}; "
                          f"known suffixes: {' '.join(sorted(SUFFIXES[media]))}")  # fmt: skip
    listing = _listing(root, files, sorted(planned), classes, has_labels=bool(layout.classes))
    return FolderSource(media, listing, dict(sorted(left_out.items())))


def _listing(
    root: Path, files: Files, planned: list[_Place], classes: tuple[str, ...] | None, *, has_labels: bool
) -> Listing:
    keys = split_text(b"\0".join(files.joined_paths(place.number) for place in planned))
    counts = [files.count(place.number) for place in planned]
    splits = tuple(sorted({place.split for place in planned}))
    split_index = {name: index for index, name in enumerate(splits)}
    columns: dict[str, Column] = {}
    if has_labels:
        class_index = {name: index for index, name in enumerate(classes or ())} | {"": -1}
        columns["label"] = np.repeat(np.array([class_index[place.class_name] for place in planned], np.int64), counts)
    return Listing(
        keys=keys,
        locations=keys,
        root=str(root),
        stat=files.stat([place.number for place in planned]),
        splits=splits,
        split=np.repeat(np.array([split_index[place.split] for place in planned], np.int32), counts),
        classes=classes,
        columns=columns,
    )


def _split_folders(root: Path, folders: frozenset[str], recipe: Recipe) -> frozenset[str] | None:
    """The folders directly in the root that are splits; None when there are no splits."""
    if recipe.splits == "none":
        return None
    if recipe.splits != "auto":
        missing = sorted(set(recipe.splits) - folders)
        if missing:
            raise RecipeError(f"{root}: no split folder {', '.join(map(repr, missing))}, got splits="
                              f"{','.join(recipe.splits)}; the folders are {_some(folders)}")  # fmt: skip
        return frozenset(recipe.splits)
    splits = frozenset(name for name in folders if name.lower() in SPLIT_NAMES)
    if splits and splits != folders:
        raise RecipeError(
            f"{root}: {_some(splits)} look like splits, {_some(folders - splits)} do not; "
            f"--set splits=none takes all as classes, --set splits={','.join(sorted(splits))} names the splits"
        )
    return splits or None


def _classes(layout: _Layout, recipe: Recipe) -> tuple[str, ...] | None:
    found = frozenset(name for _, name in layout.classes)
    if recipe.classes is None:
        return tuple(sorted(found)) or None
    unknown = found - set(recipe.classes)
    if unknown:
        raise RecipeError(f"class folder {_some(unknown)} is not in classes={','.join(recipe.classes)}")
    return recipe.classes


def _some(names: frozenset[str]) -> str:
    """Up to eight names for a message."""
    listed = [repr(name) for name in sorted(names)]
    return ", ".join(listed[:8] + [f"… ({len(listed)} in all)"] * (len(listed) > 8)) or "none"
