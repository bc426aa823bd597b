"""A second build decodes only what changed, and reads exactly as a first build of the same source would."""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builds import events, quarantine, save_image
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inline_executor import inline  # noqa: F401  (a fixture)
from PIL import Image

import precompile
from precompile.errors import ShrinkError, StoppedError, TooManyFailuresError
from precompile.format.generation import list_generations
from precompile.pipeline import compile_sample, reuse
from precompile.pipeline.options import Summary
from precompile.pipeline.verify import verify

pytestmark = pytest.mark.usefixtures("inline")


def build(raw: Path, out: Path, **options: object) -> Summary:
    return precompile.build(raw, out, quiet=True, workers=1, store="flat", allow_shrink=True, **options)


def reading(out: Path) -> list[object]:
    """All that training sees."""
    dataset = precompile.CompiledDataset(out)
    samples = [{name: np.asarray(value).tolist() for name, value in dataset[i].items()} for i in range(len(dataset))]
    splits = [(split.name, split.count) for split in dataset.manifest.splits]
    return [list(dataset.keys), dataset.classes, splits, samples, dataset.schema, dataset.fingerprint]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for number in range(12):
        save_image(tmp_path / "raw" / f"c{number % 3}" / f"{number:02d}.png", number)
    return tmp_path / "raw"


@pytest.fixture
def out(raw: Path, tmp_path: Path) -> Path:
    build(raw, tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The content of every file that is decoded."""
    contents: list[bytes] = []
    call = compile_sample.SampleCompiler.__call__

    def note(self: compile_sample.SampleCompiler, data: bytes) -> compile_sample.CompiledSample:
        contents.append(data)
        return call(self, data)

    monkeypatch.setattr(compile_sample.SampleCompiler, "__call__", note)
    return contents


def rewrite_in_secret(path: Path, data: bytes) -> None:
    """Other bytes, with the old times put back."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_nothing_is_decoded_when_nothing_changed(raw: Path, out: Path, decoded: list[bytes]) -> None:
    summary = build(raw, out)
    assert (summary.compiled, summary.reused, summary.generation, decoded) == (0, 12, 1, [])


def test_only_a_new_file_is_decoded(raw: Path, out: Path, decoded: list[bytes]) -> None:
    pixels = save_image(raw / "c1" / "new.png", 100)
    decoded.clear()
    summary = build(raw, out)
    assert (summary.compiled, summary.reused, summary.generation) == (1, 12, 2)
    assert decoded == [(raw / "c1" / "new.png").read_bytes()]
    dataset = precompile.CompiledDataset(out)
    assert list(dataset.keys) == sorted(dataset.keys)
    np.testing.assert_array_equal(dataset[list(dataset.keys).index("c1/new.png")]["image"], pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("how", ["touched", "copied", "renamed", "moved to another class", "moved to another folder"])
def test_known_content_is_hashed_and_not_decoded(
    raw: Path, out: Path, tmp_path: Path, decoded: list[bytes], how: str
) -> None:
    source = raw
    if how == "touched":
        for path in raw.rglob("*.png"):
            os.utime(path)
    elif how == "copied":
        source = shutil.copytree(raw, tmp_path / "copy", copy_function=shutil.copyfile)
    elif how == "renamed":
        (raw / "c1").rename(raw / "c9")
    elif how == "moved to another class":
        (raw / "c1" / "04.png").rename(raw / "c2" / "04.png")
    else:
        source = raw.rename(tmp_path / "elsewhere")
    summary = build(source, out)
    assert (summary.compiled, summary.reused, summary.quarantined, decoded) == (0, 12, 0, [])
    build(source, tmp_path / "fresh")
    assert reading(out) == reading(tmp_path / "fresh")
    assert precompile.CompiledDataset(out).manifest.source["root"] == str(source)


def test_a_file_that_was_rewritten_with_its_old_size_and_times_is_noticed(raw: Path, out: Path, tmp_path: Path) -> None:
    one, other = raw / "c0" / "00.png", raw / "c0" / "03.png"
    data = one.read_bytes()
    assert len(data) == len(other.read_bytes())
    rewrite_in_secret(one, other.read_bytes())
    rewrite_in_secret(other, data)
    assert build(raw, out).generation == 2
    build(raw, tmp_path / "fresh")
    assert reading(out) == reading(tmp_path / "fresh")


def test_new_labels_of_a_table_decode_nothing(tmp_path: Path, raw: Path, decoded: list[bytes]) -> None:
    table, names = tmp_path / "table.csv", sorted(path.relative_to(tmp_path) for path in raw.rglob("*.png"))

    def write(label: Callable[[int], str], split: str) -> None:
        rows = [
            f"{name},{label(number)},{split if number < 3 else 'train'},note {number}"
            for number, name in enumerate(names)
        ]
        table.write_text("path,label,split,note\n" + "\n".join(rows) + "\n")

    write(lambda number: f"l{number % 2}", "val")
    build(table, tmp_path / "out")
    decoded.clear()
    write(lambda number: f"k{number % 4}", "test")
    summary = build(table, tmp_path / "out")
    assert (summary.compiled, summary.reused, decoded) == (0, 12, [])
    build(table, tmp_path / "fresh")
    assert reading(tmp_path / "out") == reading(tmp_path / "fresh")
    assert precompile.CompiledDataset(tmp_path / "out").classes == ["k0", "k1", "k2", "k3"]


@pytest.mark.parametrize(
    ("keys", "decodes", "named"),
    [
        ({"size": 6}, 12, "size None -> 6"),
        ({"order": "source"}, 12, "order shuffled -> source"),
        ({"classes": ("c2", "c1", "c0")}, 0, "classes None -> "),
        ({"splits": "none"}, 0, "splits auto -> none"),
    ],
)
def test_a_changed_recipe_names_the_key_and_decodes_if_it_must(
    raw: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: dict, decodes: int, named: str
) -> None:
    summary = precompile.build(raw, out, workers=1, store="flat", **keys)
    assert (summary.compiled, summary.generation) == (decodes, 2)
    assert named in capsys.readouterr().err
    build(raw, tmp_path / "fresh", **keys)
    assert reading(out) == reading(tmp_path / "fresh")


def test_a_known_failure_is_kept_and_not_tried_again(raw: Path, tmp_path: Path, decoded: list[bytes]) -> None:
    bad, out = raw / "c0" / "bad.png", tmp_path / "out"
    bad.write_bytes(b"\x89PNG broken")
    assert build(raw, out).exit_code == 3
    first = quarantine(out)["c0/bad.png"]
    save_image(raw / "c0" / "new.png", 50)
    decoded.clear()
    summary = build(raw, out)
    assert (summary.exit_code, summary.quarantined, len(decoded)) == (0, 1, 1)
    assert quarantine(out)["c0/bad.png"] == first
    os.utime(bad)
    decoded.clear()
    assert (build(raw, out).exit_code, decoded) == (0, [])
    assert quarantine(out)["c0/bad.png"]["attempts"] == 1
    bad.write_bytes(b"\x89PNG broken otherwise")
    assert build(raw, out).exit_code == 3


def test_retry_quarantined_tries_only_those_and_counts_the_attempts(
    raw: Path, tmp_path: Path, decoded: list[bytes]
) -> None:
    (raw / "c0" / "bad.png").write_bytes(b"\x89PNG broken")
    build(raw, tmp_path / "out")
    decoded.clear()
    summary = build(raw, tmp_path / "out", retry_quarantined=True)
    assert (summary.quarantined, summary.exit_code, decoded) == (1, 0, [b"\x89PNG broken"])
    assert quarantine(tmp_path / "out")["c0/bad.png"]["attempts"] == 2


def test_a_new_name_of_a_known_failure_is_a_new_failure(raw: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    (raw / "c0" / "empty.png").write_bytes(b"")
    build(raw, out)
    (raw / "c1" / "empty2.png").write_bytes(b"")
    with pytest.raises(TooManyFailuresError, match=r"^c1/empty2.png: read: empty file.*stopped by on_error=stop"):
        build(raw, out, on_error="stop", log_file=log)
    assert build(raw, out, log_file=log).exit_code == 3
    assert {row["sample"] for row in events(log) if row["event"] == "quarantined"} == {"c1/empty2.png"}
    assert [row["level"] for row in events(log) if row["event"] == "new failures"] == ["error"]


def test_classes_that_move_are_named(raw: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_image(raw / "aardvark" / "new.png", 50)
    precompile.build(raw, out, workers=1, store="flat")
    assert "the classes changed: added 'aardvark', 3 others have another label now ('c0', 'c1', 'c2')" in (
        capsys.readouterr().err
    )
    shutil.rmtree(raw / "aardvark")
    assert "removed 'aardvark'" not in capsys.readouterr().err
    precompile.build(raw, out, workers=1, store="flat", classes=("aardvark", "c0", "c1", "c2"))
    assert "the classes changed" not in capsys.readouterr().err


def test_generations_that_differ_are_kept_beside_those_that_were_only_touched(raw: Path, out: Path) -> None:
    save_image(raw / "c0" / "new.png", 50)
    build(raw, out)
    for _ in range(3):
        os.utime(raw / "c0" / "new.png")
        build(raw, out)
    assert list_generations(out) == [1, 4, 5]


def test_a_dry_run_says_why_and_what_it_would_lose(raw: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(6):
        (raw / f"c{number % 3}" / f"{number:02d}.png").unlink()
    precompile.build(raw, out, workers=1, store="flat", size=4, dry_run=True)
    said = capsys.readouterr().err
    assert "the recipe changed (size None -> 4): compiling everything again" in said
    assert "over 10 % of the samples would be lost: a build needs --allow-shrink" in said
    with pytest.raises(StoppedError, match="a dry run keeps nothing"):
        build(raw, out, size=4, dry_run=True, max_runtime_seconds=1e-9)


def test_a_damaged_index_makes_everything_anew(raw: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = out / "generations" / "000001" / "crc32.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    save_image(raw / "c0" / "new.png", 50)
    summary = precompile.build(raw, out, workers=1, store="flat")
    assert (summary.compiled, summary.reused) == (13, 0)
    assert "crc32.npy: damaged or missing): compiling everything again" in capsys.readouterr().err
    assert verify(out, full=True) == []


def test_a_lost_shard_is_compiled_again_and_nothing_else(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(raw, out, shard_size=600)
    lost = sorted((out / "shards").iterdir())[0]
    records = next(s.records for s in precompile.CompiledDataset(out).manifest.shards if s.file == lost.name)
    before = reading(out)
    lost.unlink()
    summary = build(raw, out, shard_size=600)
    assert (summary.compiled, summary.reused) == (records, 12 - records)
    assert reading(out) == before


def test_shards_that_are_mostly_dead_are_copied_together(raw: Path, tmp_path: Path, decoded: list[bytes]) -> None:
    out = tmp_path / "out"
    build(raw, out, shard_size=1000)
    shards = len(precompile.CompiledDataset(out).manifest.shards)
    assert shards > 2
    for number in range(9):
        (raw / f"c{number % 3}" / f"{number:02d}.png").unlink()
    decoded.clear()
    summary = build(raw, out, shard_size=1000, keep=1)
    assert (summary.compiled, summary.reused, decoded) == (0, 3, [])
    manifest = precompile.CompiledDataset(out).manifest
    assert all(2 * shard.records > shard.records for shard in manifest.shards)
    assert sum(shard.records for shard in manifest.shards) < 6
    assert sorted(path.name for path in (out / "shards").iterdir()) == sorted(shard.file for shard in manifest.shards)
    build(raw, tmp_path / "fresh", shard_size=1000)
    assert reading(out) == reading(tmp_path / "fresh")
    assert verify(out, full=True) == []


def test_a_damaged_record_is_compiled_and_not_copied(raw: Path, tmp_path: Path, decoded: list[bytes]) -> None:
    out = tmp_path / "out"
    build(raw, out)
    for number in range(9):
        (raw / f"c{number % 3}" / f"{number:02d}.png").unlink()
    shard = next((out / "shards").iterdir())
    dataset = precompile.CompiledDataset(out)
    row = list(dataset.keys).index("c0/09.png")
    data = bytearray(shard.read_bytes())
    data[dataset.stored.index.record[row, 1]] ^= 1
    shard.write_bytes(data)
    decoded.clear()
    assert build(raw, out).reused == 2
    assert decoded == [(raw / "c0" / "09.png").read_bytes()]
    assert verify(out, full=True) == []


def test_many_small_shards_are_put_together(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[bytes]
) -> None:
    monkeypatch.setattr(reuse, "MAX_SMALL_SHARDS", 2)
    for number in range(12, 30):
        save_image(raw / "c0" / f"{number}.png", number)
    build(raw, tmp_path / "out")
    for number in range(100, 106):
        save_image(raw / "c0" / f"{number}.png", number)
        build(raw, tmp_path / "out")
        assert len(precompile.CompiledDataset(tmp_path / "out").manifest.shards) <= 5
    assert len(decoded) == len(set(decoded)) + 16  # the first build compiles some once more to learn their size
    build(raw, tmp_path / "fresh")
    assert reading(tmp_path / "out") == reading(tmp_path / "fresh")


def test_a_build_that_would_lose_many_samples_is_not_committed(raw: Path, out: Path) -> None:
    for number in range(2):
        (raw / f"c{number % 3}" / f"{number:02d}.png").unlink()
    with pytest.raises(ShrinkError, match=r"would have 10 samples, the current one has 12.*--allow-shrink"):
        precompile.build(raw, out, quiet=True, workers=1, store="flat")
    assert precompile.CompiledDataset(out).manifest.generation == 1


def test_bytes_of_a_python_source_are_compared_by_content(tmp_path: Path) -> None:
    source = _Memory([_png(number) for number in range(4)])
    build(source, tmp_path / "out")  # type: ignore[arg-type]
    assert build(source, tmp_path / "out").compiled == 0  # type: ignore[arg-type]
    other = _Memory([*source.pictures[:3], _png(9)])
    assert len(other.pictures[3]) == len(source.pictures[3])
    summary = build(other, tmp_path / "out")  # type: ignore[arg-type]
    assert (summary.compiled, summary.reused) == (1, 3)


def test_shards_of_several_library_versions_are_named(
    raw: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from builds import cli

    monkeypatch.setattr("precompile.pipeline.compile_shard.library_versions", lambda media: {"pillow": "99.0"})
    save_image(raw / "c0" / "new.png", 50)
    precompile.build(raw, out, workers=1, store="flat")
    assert "shards were made by several library versions (pillow" in capsys.readouterr().err
    assert "and 99.0" in cli("info", out).out
    assert "99.0" in json.loads(cli("info", out, "--json").out)["mixed_versions"]["pillow"]


EDITS = ("add", "remove", "rename", "relabel", "rewrite", "rewrite in secret", "swap in secret", "touch", "break",
         "duplicate", "move all")  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 10**6)), min_size=1, max_size=5), max_size=3))
def test_any_sequence_of_edits_reads_as_a_fresh_build(rounds: list[list[tuple[str, int]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        raw, out = Path(folder, "raw"), Path(folder, "out")
        for number in range(6):
            save_image(raw / f"c{number % 2}" / f"{number}.png", number, side=4 + number % 2)
        build(raw, out)
        for edits in rounds:
            known = {path.read_bytes() for path in raw.rglob("*.png")}
            for edit, number in edits:
                raw = apply(raw, edit, number)
            contents = [path.read_bytes() for path in raw.rglob("*.png")]
            summary = build(raw, out)
            assert summary.planned == len(contents)
            assert summary.compiled <= sum(content not in known for content in contents)
            fresh = Path(folder, "fresh")
            build(raw, fresh)
            assert reading(out) == reading(fresh)
            assert quarantined(out) == quarantined(fresh)
            assert verify(out, full=True) == []
            shutil.rmtree(fresh)


def apply(raw: Path, edit: str, number: int) -> Path:
    files = sorted(raw.rglob("*.png"))
    path, other = files[number % len(files)], files[(number + 1) % len(files)]
    if edit == "add":
        save_image(raw / f"c{number % 3}" / f"new{number}.png", number)
    elif edit == "remove" and len(files) > 3:
        path.unlink()
    elif edit == "rename":
        path.rename(path.with_name(f"renamed{number}.png"))
    elif edit == "relabel":
        (raw / f"c{number % 4}").mkdir(exist_ok=True)
        path.rename(raw / f"c{number % 4}" / path.name)
    elif edit == "rewrite":
        save_image(path, number)
    elif edit == "rewrite in secret":
        rewrite_in_secret(path, _png(number))
    elif edit == "swap in secret":
        data = path.read_bytes()
        rewrite_in_secret(path, other.read_bytes())
        rewrite_in_secret(other, data)
    elif edit == "touch":
        os.utime(path)
    elif edit == "break" and sum(b"IEND" in file.read_bytes() for file in files) > 2:
        path.write_bytes(f"broken {number % 2}".encode())
    elif edit == "duplicate":
        path.with_name(f"copy{number}.png").write_bytes(path.read_bytes())
    elif edit == "move all":
        return raw.rename(raw.with_name(f"raw{number}"))
    return raw


def quarantined(out: Path) -> list[tuple[str, str, str, str]]:
    return [(row["key"], row["split"], row["stage"], row["message"]) for row in quarantine(out).values()]


def _png(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(value).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


class _Memory:
    """Pictures in memory, as a source."""

    media = "image"
    classes = None
    left_out: dict[str, int] = {}  # noqa: RUF012

    def __init__(self, pictures: list[bytes]) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> object:
        from precompile.pipeline.sample import RawSample

        return RawSample(f"{index}.png", "all", {"image": self.pictures[index], "label": index % 2})
