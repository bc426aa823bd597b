"""Class folders and split folders: what torchvision's ImageFolder reads, for any media.

Layouts: `root/<class>/**/x`, `root/<split>/<class>/**/x`, `root/<split>/x` and `root/x`. One class map holds for
all splits, so a class that is missing in one of them shifts no label.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precompile.errors import RecipeError, SourceError
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.sources._listing import FolderSource, Listing, TextBuilder
from precompile.pipeline.sources._media import SUFFIXES, suffix_of
from precompile.pipeline.sources._walk import describe, walk

SPLIT_NAMES = frozenset({
    "train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval", "evaluation",
})  # fmt: skip
"""Well-known names of split folders, in lower case."""
NO_SPLIT = "all"


@dataclass(frozen=True, slots=True)
class _Files:
    """The planned files of one folder."""

    path: str
    """Relative to the root; `""` is the root."""
    names: bytes
    """In sorted order, joined by NUL: a tenth of the memory of a list of strings."""
    count: int

    @classmethod
    def of(cls, path: str, names: list[str]) -> _Files:
        return cls(path, "\0".join(sorted(names)).encode("utf-8", "surrogateescape"), len(names))

    def paths(self) -> list[str]:
        prefix = f"{self.path}/" if self.path else ""
        names = self.names.decode("utf-8", "surrogateescape").split("\0") if self.count else []
        return [prefix + name for name in names]


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


def open_folder(media: str, root: Path, recipe: Recipe) -> FolderSource:
    """The files of one media below `root`; others are left out and counted by suffix.

    Within a split the order is torchvision's: classes, then folders, then names, each sorted as text; splits
    are sorted as text too. Raises SourceError when nothing is planned, RecipeError when `splits` or `classes`
    do not fit the folders, StorageError when a folder cannot be listed.
    """
    root = root.absolute()
    if not root.is_dir():
        raise SourceError(f"{root}: {media}_folder needs a folder, got a file")
    folders: list[_Files] = []
    left_out: Counter[str] = Counter()
    for folder in walk(root):
        folders.append(_Files.of(folder.path, folder.files.pop(media)))
        left_out.update(folder.left_out)
        left_out.update(suffix_of(name) for names in folder.files.values() for name in names)
    paths = [files.path for files in folders]
    layout = _Layout.of(
        paths, _split_folders(root, frozenset(path for path in paths if path and "/" not in path), recipe)
    )
    classes = _classes(layout, recipe)
    planned: list[tuple[str, str | None, _Files]] = []
    for files in folders:
        place = layout.place(files.path)
        if isinstance(place, str):
            left_out[place] += files.count
        elif files.count:
            planned.append((*place, files))
    if not planned:
        raise SourceError(f"{root}: no {media} file found, only {describe(+left_out)}; "
                          f"known suffixes: {' '.join(sorted(SUFFIXES[media]))}")  # fmt: skip
    planned.sort(key=lambda item: (item[0], item[1] or "", item[2].path))
    splits = tuple(sorted({split for split, _, _ in planned}))
    listing = _listing(planned, splits, classes if layout.classes else None)
    return FolderSource(media, root, listing, splits, classes, dict(sorted((+left_out).items())))


def _listing(
    planned: list[tuple[str, str | None, _Files]], splits: tuple[str, ...], classes: tuple[str, ...] | None
) -> Listing:
    paths = TextBuilder()
    for _, _, files in planned:
        paths.extend(files.paths())
    counts = [files.count for _, _, files in planned]
    split_index = {name: index for index, name in enumerate(splits)}
    split = np.repeat(np.array([split_index[split] for split, _, _ in planned], np.int32), counts)
    if classes is None:
        return Listing(paths.finish(), split, None)
    class_index: dict[str | None, int] = {name: index for index, name in enumerate(classes)} | {None: -1}
    label = np.repeat(np.array([class_index[name] for _, name, _ in planned], np.int64), counts)
    return Listing(paths.finish(), split, label)


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
