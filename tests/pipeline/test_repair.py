"""Damaged shards are made anew from the source, and nothing else is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builds import save_image, unchanged
from damage import cut, extend, flip, index_file, place, shards
from inline_executor import inline  # noqa: F401  (a fixture)

import precompile
from precompile.errors import FormatError, SourceError
from precompile.pipeline import compile_sample
from precompile.pipeline.options import BuildOptions, Summary
from precompile.pipeline.repair import repair
from precompile.pipeline.sample import RawSample
from precompile.pipeline.verify import verify

pytestmark = pytest.mark.usefixtures("inline")
QUIET = BuildOptions(quiet=True, workers=1)


def build(raw: Path, out: Path, **options: object) -> Summary:
    return precompile.build(raw, out, quiet=True, workers=1, shard_size=800, **options)


def mend(out: Path) -> Summary | None:
    return repair(out, verify(out, full=True), options=QUIET)


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in shards(out)}


def reading(out: Path, generation: int) -> list[bytes]:
    dataset = precompile.CompiledDataset(out, generation=generation, fields="image")
    return [dataset[number].numpy().tobytes() for number in range(len(dataset))]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for number in range(24):
        save_image(tmp_path / "raw" / f"c{number % 3}" / f"{number:02d}.png", number)
    return tmp_path / "raw"


@pytest.fixture(params=["lmdb", "flat"])
def out(raw: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Six shards."""
    build(raw, tmp_path / "out", store=request.param)
    assert len(shards(tmp_path / "out")) >= 5
    return tmp_path / "out"


@pytest.fixture
def decoded(out: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The content of every file that is decoded after the first build."""
    seen: list[bytes] = []
    call = compile_sample.SampleCompiler.__call__
    monkeypatch.setattr(compile_sample.SampleCompiler, "__call__",
                        lambda self, data: seen.append(data) or call(self, data))  # fmt: skip
    return seen


def keys_in(out: Path, paths: list[Path]) -> list[str]:
    return [key for key in precompile.CompiledDataset(out).keys if place(out, key)[0] in paths]


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def test_several_damaged_shards_come_out_as_they_were(raw: Path, out: Path, decoded: list[bytes]) -> None:
    before, read_before = contents(out), reading(out, 1)
    damaged = shards(out)[:4]
    keys = keys_in(out, damaged)
    for path, damage in zip(damaged, (Path.unlink, cut, extend, zero)):
        damage(path)
    summary = mend(out)
    assert summary is not None
    assert (summary.generation, summary.compiled, summary.reused) == (2, len(keys), 24 - len(keys))
    assert sorted(decoded) == sorted((raw / key).read_bytes() for key in keys)
    assert contents(out) == before
    assert verify(out, full=True) == []
    assert reading(out, 1) == reading(out, 2) == read_before
    first, second = (precompile.CompiledDataset(out, generation=generation) for generation in (1, 2))
    assert first.fingerprint == second.fingerprint
    assert (first.schema, first.classes, list(first.keys)) == (second.schema, second.classes, list(second.keys))


def test_every_shard_may_be_damaged(out: Path) -> None:
    before = contents(out)
    for path in shards(out):
        flip(path)
    assert mend(out) is not None
    assert contents(out) == before
    assert verify(out, full=True) == []


def test_nothing_damaged_makes_no_generation(raw: Path, out: Path) -> None:
    save_image(raw / "c0" / "new.png", 99)
    with unchanged(out):
        assert mend(out) is None
    assert precompile.CompiledDataset(out).manifest.generation == 1


@pytest.mark.parametrize("edit", ["rewritten", "broken", "removed", "touched"])
@pytest.mark.parametrize("where", ["in a damaged shard", "in another shard"])
def test_a_source_that_changed_still_gives_a_whole_dataset(raw: Path, out: Path, edit: str, where: str) -> None:
    damaged = shards(out)[0]
    inside = keys_in(out, [damaged])
    key = inside[0] if where == "in a damaged shard" else next(
        key for key in precompile.CompiledDataset(out).keys if key not in inside
    )  # fmt: skip
    pixels = None
    if edit == "rewritten":
        pixels = save_image(raw / key, 99)
    elif edit == "broken":
        (raw / key).write_text("broken")
    elif edit == "removed":
        (raw / key).unlink()
    else:
        (raw / key).touch()
    flip(damaged)
    summary = mend(out)
    assert summary is not None
    assert (summary.generation, summary.exit_code) == (2, 3 if edit == "broken" else 0)
    assert verify(out, full=True) == []
    dataset = precompile.CompiledDataset(out, fields="image")
    assert (key in dataset.keys) == (edit in ("rewritten", "touched"))
    if pixels is not None:
        assert (dataset[list(dataset.keys).index(key)].numpy() == pixels.transpose(2, 0, 1)).all()


def test_old_generations_are_kept_however_many(raw: Path, out: Path) -> None:
    for number in range(3):
        save_image(raw / "c0" / f"new{number}.png", 100 + number)
        build(raw, out, store=precompile.CompiledDataset(out).manifest.store, keep=9)
    read_before = [reading(out, generation) for generation in (1, 2, 3, 4)]
    flip(place(out, "c1/01.png")[0])
    summary = mend(out)
    assert summary is not None
    assert summary.generation == 5
    assert [reading(out, generation) for generation in (1, 2, 3, 4)] == read_before
    assert verify(out, full=True) == []


def test_damage_in_the_index_is_refused_with_what_to_do(out: Path) -> None:
    flip(index_file(out, "crc32.npy"))
    flip(shards(out)[0])
    with (
        unchanged(out),
        pytest.raises(FormatError, match=r"crc32\.npy: expected checksum .*: only shards can be repaired; restore the "
                      r"file from a backup, or run `precompile build SOURCE .*/out --rebuild`"),
    ):  # fmt: skip
        mend(out)


@pytest.mark.parametrize("lose", [shutil.rmtree, lambda raw: [path.unlink() for path in raw.rglob("*.png")]])
def test_without_the_source_nothing_is_changed(raw: Path, out: Path, lose: Callable[[Path], object]) -> None:
    flip(shards(out)[0])
    lose(raw)
    with unchanged(out), pytest.raises(SourceError, match=r"raw: (no such file or folder|the folder is empty)"):
        mend(out)
    assert precompile.CompiledDataset(out).manifest.generation == 1


def test_a_source_that_moved(raw: Path, out: Path, tmp_path: Path) -> None:
    before = contents(out)
    flip(shards(out)[0])
    raw.rename(tmp_path / "elsewhere")
    repair(out, verify(out, full=True), source=str(tmp_path / "elsewhere"), options=QUIET)
    assert verify(out, full=True) == []
    assert contents(out) == before
    assert precompile.CompiledDataset(out).manifest.source["root"] == str(tmp_path / "elsewhere")


class _Memory:
    media = "image"
    classes = None
    left_out: dict[str, int] = {}  # noqa: RUF012

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.rglob("*.png"))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> RawSample:
        return RawSample(f"{index}.png", "all", {"image": self._files[index].read_bytes()})


def test_a_dataset_from_a_python_object_is_refused(raw: Path, tmp_path: Path) -> None:
    build(_Memory(raw), tmp_path / "other")  # type: ignore[arg-type]
    flip(shards(tmp_path / "other")[0])
    with pytest.raises(SourceError, match="built from a Python object, which --repair does not have; build again"):
        mend(tmp_path / "other")


def test_clips(clips: Path, compiled_clips: Path, tmp_path: Path) -> None:
    out = shutil.copytree(compiled_clips, tmp_path / "out")
    before = contents(out)
    flip(shards(out)[0])
    assert mend(out) is not None
    assert contents(out) == before
    assert verify(out, full=True) == []


def test_equal_files_in_several_shards(tmp_path: Path) -> None:
    """The content that a damaged shard held is known from another shard, and is stored there again all the same."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    for number in range(24):
        save_image(raw / f"{number:02d}.png", number // 2)
    build(raw, out)
    before = contents(out)
    flip(shards(out)[0])
    mend(out)
    assert verify(out, full=True) == []
    assert contents(out) == before


def test_a_record_that_two_samples_share(raw: Path, out: Path) -> None:
    shutil.copyfile(raw / "c0" / "00.png", raw / "c1" / "copy.png")
    build(raw, out, store=precompile.CompiledDataset(out).manifest.store)
    assert place(out, "c0/00.png") == place(out, "c1/copy.png")
    before = reading(out, 2)
    flip(place(out, "c0/00.png")[0])
    mend(out)
    assert verify(out, full=True) == []
    assert reading(out, 3) == reading(out, 2) == before
