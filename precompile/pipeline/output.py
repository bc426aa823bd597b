"""The output directory: may precompile write here, and does the result fit?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from precompile import machine
from precompile.errors import (
    DatasetNotFoundError,
    ForeignDirectoryError,
    FormatError,
    NewerFormatError,
    NoRoomError,
    RecipeError,
)
from precompile.format.generation import read_current
from precompile.format.manifest import MANIFEST_NAME, Manifest, read_manifest
from precompile.pipeline.layout import BuildDirs
from precompile.pipeline.storage import refuse_link, storage_errors, write_atomically

_SPARE_BYTES = 32 << 20
"""For index, receipts and file system overhead."""


def check_apart(source: Path, out: Path) -> None:
    """Refuse an output that is, contains, or lies in the source. Raises RecipeError."""
    here, there = source.resolve(), out.resolve()
    if (here / MANIFEST_NAME).exists() and (here / "generations").is_dir():
        raise RecipeError(f"{source}: this is a compiled dataset, expected a folder or table of raw files as SOURCE")
    if here.is_file():
        if here == there:
            raise RecipeError(f"{out}: SOURCE and OUT are the same path; choose another OUT")
        return
    if here == there:
        raise RecipeError(f"{out}: SOURCE and OUT are the same directory; choose another OUT")
    if there.is_relative_to(here):
        raise RecipeError(
            f"{out}: OUT lies inside SOURCE {source}, the next build would take it as input; choose another OUT"
        )
    if here.is_relative_to(there):
        raise RecipeError(f"{source}: SOURCE lies inside OUT {out}; choose another OUT")


def prepare(out: Path, store: str) -> BuildDirs:
    """Create the output directory, or accept one that precompile made. Raises as `check_ours`."""
    check_ours(out, store)
    dirs = BuildDirs(out)
    with storage_errors(f"cannot create {out}"):
        out.mkdir(parents=True, exist_ok=True)
        dirs.lock.touch()  # first of all: it says that the directory is ours, however this run ends
        for directory in (dirs.shards, dirs.generations, dirs.work):
            refuse_link(directory)
        for directory in (dirs.shards, dirs.generations):
            directory.mkdir(exist_ok=True)
    return dirs


def check_ours(out: Path, store: str) -> None:
    """Raises ForeignDirectoryError for a file or for a directory that precompile did not make, RecipeError for a name
    or a file system that will not do. Nothing is changed."""
    dirs = BuildDirs(out)
    if not _is_text(out):
        raise RecipeError(
            f"{str(out).encode('utf-8', 'backslashreplace').decode()}: OUT must be valid UTF-8; choose another name"
        )
    if out.exists() and not out.is_dir():
        raise ForeignDirectoryError(f"{out}: OUT is a file, expected a directory or a new name; nothing was changed")
    if out.is_dir():
        with storage_errors(f"cannot list {out}"):
            holds_something = any(out.iterdir())
        if holds_something and not dirs.lock.exists() and not _is_dataset(out):
            raise ForeignDirectoryError(
                f"{out}: OUT is a directory that precompile did not make, expected an empty or a new one; "
                "nothing was changed"
            )
    if store == "tmpfs" and not machine.is_tmpfs(out):
        raise RecipeError(f"{out}: store=tmpfs needs OUT on a tmpfs such as /dev/shm, found {machine.filesystem(out)}; "
                          "choose another OUT or store=flat")  # fmt: skip


def current_manifest(
    out: Path, *, restore: bool = True, say: Callable[[str], None] = lambda text: None
) -> Manifest | None:
    """The current generation, if there is a dataset.

    A damaged manifest.json is replaced by the newest generation's own copy, on disk only with `restore`. Raises
    FormatError when there is none that can be read, or when the dataset is of a newer format.
    """
    try:
        return read_current(out)
    except DatasetNotFoundError:
        return None
    except NewerFormatError:
        raise
    except FormatError as damaged:
        for path in sorted((out / "generations").glob("[0-9]*/" + MANIFEST_NAME), reverse=True):
            with contextlib.suppress(FormatError):
                manifest = read_manifest(path)
                if restore:
                    write_atomically(out / MANIFEST_NAME, path.read_bytes())
                    say(f"{damaged}: restored from generation {manifest.generation}")
                return manifest
        raise FormatError(f"{damaged}; no generation in {out} can be read either: choose another OUT") from None


def check_room(dirs: BuildDirs, need_bytes: int) -> None:
    """Raises NoRoomError, with need and have, when the file system or the container's memory cannot hold it."""
    need = need_bytes + _SPARE_BYTES
    have, what = machine.free_bytes(dirs.root), f"{machine.filesystem(dirs.root)} of {dirs.root}"
    if machine.is_tmpfs(dirs.root):
        available = machine.memory().available_bytes
        if available < have:
            have, what = available, f"memory of this container (a tmpfs lives in it), {dirs.root}"
    if need > have:
        raise NoRoomError(f"the result needs about {megabytes(need)}, the {what} has {megabytes(have)} free; "
                          "nothing was written. Free some space, choose another OUT, or a smaller --size")  # fmt: skip


def megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"


def _is_text(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_dataset(out: Path) -> bool:
    return (out / MANIFEST_NAME).is_file() and (out / "generations").is_dir()
