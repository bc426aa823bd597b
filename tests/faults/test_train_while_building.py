"""A training job keeps the generation that it opened while builds commit and prune others."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from builds import REPOSITORY, save_image
from outputs import check_whole
from scenarios import RECIPE, make_pictures
from servers import BuildServer

import precompile
from precompile.format.generation import list_generations

READER = """
import hashlib, sys
from torch.utils.data import DataLoader
from precompile import CompiledDataset

def main():
    dataset = CompiledDataset(sys.argv[1], fields="image")
    print("open", flush=True)
    for line in sys.stdin:  # one epoch for each, by a worker that is started now
        digest = hashlib.sha256()
        for batch in DataLoader(dataset, batch_size=5, num_workers=1, multiprocessing_context="spawn"):
            digest.update(batch.numpy().tobytes())
        print(digest.hexdigest(), flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that opens `out`; each line to it is answered with the digest of an epoch."""
    script = tmp_path / "reader.py"
    script.write_text(READER)
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "out")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    ) as process:  # fmt: skip
        yield process
        process.kill()


def ask(reader: subprocess.Popen[str], line: str = "") -> str:
    assert reader.stdin is not None
    assert reader.stdout is not None
    if line:
        reader.stdin.write(line + "\n")
        reader.stdin.flush()
    return reader.stdout.readline().strip()


@pytest.fixture
def first(server: BuildServer, tmp_path: Path) -> str:
    """Builds generation 1; the digest of its images."""
    make_pictures(tmp_path / "raw")
    build(server, tmp_path, 1)
    images = precompile.CompiledDataset(tmp_path / "out", fields="image")
    return hashlib.sha256(b"".join(image.numpy().tobytes() for image in images)).hexdigest()


def build(server: BuildServer, home: Path, generation: int) -> None:
    found = server.run("build", home / "raw", home / "out", *RECIPE, "--workers", 2, "--keep", 1)
    assert found.code == 0, found.err
    assert found.json["generation"] == generation


def test_a_reader_keeps_its_generation(
    server: BuildServer, tmp_path: Path, first: str, reader: subprocess.Popen[str]
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    assert ask(reader) == "open"
    for generation in (2, 3):
        for path in sorted(raw.rglob("[0-9]*.png")):
            save_image(path, 1000 * generation + int(path.stem), side=20)
        build(server, tmp_path, generation)
        assert list_generations(out) == [1, generation]
    assert ask(reader, "epoch") == first
    assert list_generations(out) == [1, 3]
    reader.communicate(timeout=60)
    shutil.copytree(out, tmp_path / "copy")
    pruned = server.run("prune", tmp_path / "copy", "--keep", 1, "--json")
    assert json.loads(pruned.out)["removed"] == [1]
    build(server, tmp_path, 3)
    for root in (out, tmp_path / "copy"):
        assert list_generations(root) == [3]
        check_whole(root)
        shards = {shard.file for shard in precompile.CompiledDataset(root).manifest.shards}
        assert {path.name for path in (root / "shards").iterdir()} == shards
