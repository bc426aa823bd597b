"""Places for caches, and datasets to stage."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stagers import Stager
from written import write

from precompile.format.schema import FieldSpec

MEBIBYTES = (FieldSpec("image", "uint8", (1 << 20,)),)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder for a cache; not there yet."""
    return tmp_path / "cache"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A RAM disk of 16 MiB."""
    point = tmp_path / "ram"
    point.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(point)], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("there is no command `mount`")
    if done.returncode:
        pytest.skip(f"may not mount a tmpfs: {done.stderr.splitlines()[0]}")
    yield point
    subprocess.run(["umount", "--lazy", str(point)], check=True)


@pytest.fixture(scope="session")
def mebibytes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """mebibytes(n): a dataset of n samples of 1 MiB, in shards of about 2 MiB. Read only."""
    home, made = tmp_path_factory.mktemp("mebibytes"), {}

    def make(count: int) -> Path:
        if count not in made:
            made[count] = home / f"{count}.pc"
            write(made[count], MEBIBYTES, count, num_shards=max(1, count // 2))
        return made[count]

    return make


@pytest.fixture
def stager(tmp_path: Path) -> Iterator[Callable[..., Stager]]:
    """stager(root, directory, do): another process that stages, and that stops half way; see Stager."""
    started: list[Stager] = []

    def start(root: Path, directory: Path, do: str) -> Stager:
        started.append(Stager(root, directory, do, tmp_path / f"half-{len(started)}"))
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.fixture
def memory_group() -> Iterator[Callable[[int], Path]]:
    """memory_group(limit_bytes): the folder of a real cgroup v1 with this limit."""
    folder = Path(f"/sys/fs/cgroup/memory/precompile-{uuid.uuid4().hex}")

    def make(limit_bytes: int) -> Path:
        try:
            folder.mkdir()
            (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        except OSError as error:
            if folder.exists():
                folder.rmdir()
            pytest.skip(f"may not make a cgroup v1: {error}")
        return folder

    yield make
    if folder.exists():
        os.rmdir(folder)


@pytest.fixture
def left_in() -> Callable[[Path], set[str]]:
    """left_in(directory): names in a cache, besides its own two files."""
    return lambda directory: {path.name for path in directory.iterdir()} - {".lock", ".precompile-cache"}
