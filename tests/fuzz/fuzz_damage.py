"""What may happen to the files of a dataset. A case is a function of its number alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fuzz_bytes import BYTES, JSON, NPY, Rng, some
from fuzz_datasets import GENERATIONS, KINDS, kind_of

from precompile.pipeline.checksum import file_checksum

_TERABYTE = 1 << 40
Files = dict[str, list[str]]


@dataclass(frozen=True)
class Case:
    """One damage of one dataset."""

    number: int
    kind: str
    what: str
    paths: tuple[str, ...]
    """The damaged files, relative to the dataset."""
    forged: bool
    """Whether sizes and checksums in the manifests were made to fit."""

    def __str__(self) -> str:
        forged = ", checksums made to fit" if self.forged else ""
        return f"case {self.number} ({self.kind}: {self.what} in {', '.join(self.paths)}{forged})"


def write_new(path: Path, content: bytes) -> None:
    """A new file in its place: the old one may be mapped, and is a hard link to that of the undamaged dataset."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)


NODES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a folder": Path.mkdir,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link in a circle": lambda path: path.symlink_to(path.name),
    "a link to a folder": lambda path: path.symlink_to("."),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a terabyte of nothing": lambda path: (path.touch(), os.truncate(path, _TERABYTE)),
}


def _files_of(root: Path) -> Files:
    """The files of the current generation by what they are."""
    directory = f"generations/{GENERATIONS[-1]:06d}"
    shards = [f"shards/{item['file']}" for item in json.loads((root / "manifest.json").read_bytes())["shards"]]
    index = sorted(f"{directory}/{path.name}" for path in (root / directory).glob("*.npy"))
    return {
        "manifest": ["manifest.json", f"{directory}/manifest.json"],
        "index": index,
        "shard": shards,
        "quarantine": [f"{directory}/quarantine.jsonl"],
    }


def _is_whole(path: Path) -> bool:
    """Whether it may be read: an earlier damage may have left something else than a file."""
    return path.is_file() and path.stat().st_size < _TERABYTE


def _choose_paths(rng: Rng, root: Path, files: Files) -> tuple[str, tuple[str, ...]]:
    group = ("manifest", "index", "shard", "quarantine")[int(rng.choice(4, p=[0.34, 0.43, 0.18, 0.05]))]
    whole = [path for path in files[group] if _is_whole(root / path)]
    if not whole:
        group, whole = "index", [path for path in files["index"] if _is_whole(root / path)]
    if group == "manifest" and rng.random() < 0.5:
        return group, tuple(whole)
    return group, (whole[some(rng, 0, len(whole))],)


def _swap(rng: Rng, pristine: Path, root: Path, path: str) -> str:
    """The content of another file: one of this dataset, of its other generation, or of another dataset."""
    choice = some(rng, 0, 3)
    other_root = pristine / list(KINDS)[some(rng, 0, len(KINDS))] if choice == 0 else root
    others = sorted(other for other in other_root.rglob("*") if _is_whole(other) and other != root / path)
    if choice == 1:  # of the same name, or nearly: what a mistaken copy would do
        others = [other for other in others if other.suffix == Path(path).suffix] or others
    if choice == 2:
        others = [other for other in others if other.name == Path(path).name] or others
    other = others[some(rng, 0, len(others))]
    if rng.random() < 0.3:
        mine = (root / path).read_bytes()
        write_new(root / path, other.read_bytes())
        if other.is_relative_to(root):
            write_new(other, mine)
            return f"exchanged with {other.relative_to(root)}"
    write_new(root / path, other.read_bytes())
    return f"content of {other.relative_to(other_root.parent)}"


def _forge(root: Path, path: str) -> bool:
    """Make sizes and checksums in both manifests fit a damaged file."""
    name, size = Path(path).name, (root / path).stat().st_size
    for manifest in (root / "manifest.json", root / "generations" / f"{GENERATIONS[-1]:06d}" / "manifest.json"):
        try:
            value = json.loads(manifest.read_bytes())
        except ValueError:  # an earlier damage put another file in its place
            return False
        entry = value["index"].get(name) or next((item for item in value["shards"] if item["file"] == name), None)
        if entry is None:
            return False
        entry.update(bytes=size, xxh3=file_checksum(root / path))
        write_new(manifest, json.dumps(value, indent=1).encode())
    return True


def _damage_bytes(rng: Rng, group: str, root: Path, paths: tuple[str, ...]) -> str:
    damages = BYTES + {"manifest": JSON, "index": NPY * 4}.get(group, ())
    damage = damages[some(rng, 0, len(damages))]
    content = damage(rng, (root / paths[0]).read_bytes())
    for path in paths:
        write_new(root / path, content)
    return damage.__name__.replace("_", " ")


def damage(number: int, home: Path, pristine: Path) -> Case:
    """Damage one of the datasets below `home` as this number says; every eighth twice."""
    rng = np.random.default_rng(number)
    kind = kind_of(number)
    files = _files_of(home / kind)
    whats, paths, forged = _damage_once(rng, pristine, home / kind, files)
    if rng.random() < 0.125 and not any(path.endswith("manifest.json") for path in paths):
        others, more, also_forged = _damage_once(rng, pristine, home / kind, {**files, "manifest": []})
        whats, paths, forged = f"{whats}, then {others}", paths + more, forged or also_forged
    return Case(number, kind, whats, paths, forged)


def _damage_once(rng: Rng, pristine: Path, root: Path, files: Files) -> tuple[str, tuple[str, ...], bool]:
    """What was done, to which files, and whether checksums were made to fit."""
    group, paths = _choose_paths(rng, root, files)
    forged = False
    choice = rng.random()
    if choice < 0.1:
        what = list(NODES)[some(rng, 0, len(NODES))]
        for path in paths:
            (root / path).unlink()
            NODES[what](root / path)
        what = f"{what} in place of it"
    elif choice < 0.2:
        what = _swap(rng, pristine, root, paths[0])
        paths = paths[:1]
    else:
        what = _damage_bytes(rng, group, root, paths)
        forged = group in ("index", "shard") and rng.random() < 0.3 and _forge(root, paths[0])
    return what, paths, forged


def restore(root: Path, pristine: Path) -> None:
    """Undo damages: every file of the dataset is a link to the undamaged one again."""
    for original in pristine.rglob("*"):
        path = root / original.relative_to(pristine)
        if original.is_dir() or (path.is_file() and not path.is_symlink() and path.samefile(original)):
            continue
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.hardlink_to(original)
