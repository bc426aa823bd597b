"""The output directory: may precompile write here, and is nobody else writing?"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import filelock

from precompile import machine
from precompile.errors import (
    BusyError,
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
from precompile.pipeline.storage import storage_error, storage_errors, write_atomically

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
    """Create the output directory, or accept one that precompile made.

    Raises ForeignDirectoryError for a file or for a directory with other content, which is left as it is.
    """
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
    with storage_errors(f"cannot create {out}"):
        out.mkdir(parents=True, exist_ok=True)
        dirs.lock.touch()  # first of all: it says that the directory is ours, however this run ends
        for directory in (dirs.shards, dirs.generations):
            directory.mkdir(exist_ok=True)
    return dirs


def current_manifest(out: Path) -> Manifest | None:
    """The current generation, if there is a dataset.

    A damaged manifest.json is restored from the newest generation's own copy. Raises FormatError when there is none
    that can be read, or when the dataset is of a newer format.
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
                write_atomically(out / MANIFEST_NAME, path.read_bytes())
                return manifest
        raise FormatError(f"{damaged}; no generation in {out} can be read either: choose another OUT") from None


@contextlib.contextmanager
def locked(dirs: BuildDirs) -> Iterator[None]:
    """Hold the output for one build. Raises BusyError at once when another build holds it.

    The lock is the kernel's, so it is free again when its owner dies, however it dies.
    """
    lock = filelock.FileLock(dirs.lock, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise BusyError(f"{dirs.root}: {_owner(dirs)} is writing here; run again when it is done") from None
    except OSError as error:
        raise storage_error(error, f"cannot lock {dirs.lock}") from None
    try:
        with storage_errors(f"cannot write {dirs.work}"):
            dirs.work.mkdir(exist_ok=True)
            for left in dirs.root.glob(f".{MANIFEST_NAME}.*.tmp"):
                left.unlink()
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}
            write_atomically(dirs.owner, json.dumps(owner).encode())
        yield
    finally:
        lock.release()


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


def _owner(dirs: BuildDirs) -> str:
    try:
        owner = json.loads(dirs.owner.read_text())
        return f"another build (pid {owner['pid']} on {owner['host']}, since {owner['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another build"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
