"""Inputs are decoded again, and every difference is named by what became of its file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile
from builds import save_image, unchanged
from damage import flip, place
from inline_executor import InlineExecutor, inline  # noqa: F401  (a fixture)
from poison import MISBEHAVING_DECODER

import precompile
from precompile.errors import SourceError
from precompile.format.generation import generation_dir
from precompile.format.lease import is_in_use
from precompile.pipeline import against_source as module
from precompile.pipeline import compile_sample
from precompile.pipeline.against_source import compare_with_source
from precompile.pipeline.options import BuildOptions
from precompile.pipeline.sample import RawSample

pytestmark = pytest.mark.usefixtures("inline")
in_this_process = pytest.mark.usefixtures("inline_comparison")


@pytest.fixture
def inline_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LocalExecutor", InlineExecutor)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for number in range(12):
        save_image(tmp_path / "raw" / f"c{number % 3}" / f"{number:02d}.png", number, side=8 + number % 2)
    return tmp_path / "raw"


@pytest.fixture
def out(raw: Path, tmp_path: Path) -> Path:
    precompile.build(raw, tmp_path / "out", quiet=True, workers=1, store="flat", shard_size=800)
    return tmp_path / "out"


def other_decoder(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """From now on one file decodes differently."""
    call = compile_sample.SampleCompiler.__call__

    def decode(self: compile_sample.SampleCompiler, content: bytes) -> compile_sample.CompiledSample:
        compiled = call(self, content)
        if content == data:
            compiled = compile_sample.CompiledSample({n: a ^ 1 for n, a in compiled.arrays.items()}, compiled.columns)
        return compiled

    monkeypatch.setattr(compile_sample.SampleCompiler, "__call__", decode)


@in_this_process
@pytest.mark.parametrize("count", [None, 1, 5, 12, 99])
def test_an_unchanged_source_gives_what_is_stored(raw: Path, out: Path, tmp_path: Path, count: int | None) -> None:
    with unchanged(tmp_path):
        assert compare_with_source(out, count=count) == ([], min(count or 12, 12))


@in_this_process
def test_as_many_samples_as_classes_hit_every_class(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    call = compile_sample.SampleCompiler.__call__
    monkeypatch.setattr(compile_sample.SampleCompiler, "__call__",
                        lambda self, data: decoded.append(data) or call(self, data))  # fmt: skip
    for _ in range(2):
        assert compare_with_source(out, count=3) == ([], 3)
    raw = out.parent / "raw"
    classes = [next(path.parent.name for path in raw.rglob("*.png") if path.read_bytes() == data) for data in decoded]
    assert set(classes[:3]) == {"c0", "c1", "c2"}
    assert decoded[:3] == decoded[3:]


@in_this_process
def test_it_tells_apart_what_became_of_a_sample(raw: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_image(raw / "c2" / "02.png", 99)
    (raw / "c1" / "04.png").unlink()
    (raw / "c2" / "05.png").write_bytes(b"broken")
    os.utime(raw / "c0" / "06.png")
    other_decoder(monkeypatch, (raw / "c1" / "07.png").read_bytes())
    shards = {key: place(out, key)[0].name for key in precompile.CompiledDataset(out).keys}
    findings, compared = compare_with_source(out, count=None)
    assert compared == 11
    keys = ["c1/04.png", "c1/07.png", "c2/02.png", "c2/05.png"]
    assert [(finding.sample, finding.file, finding.shard) for finding in findings] == [
        (key, str(raw / key), shards[key]) for key in keys
    ]
    assert [finding.what for finding in findings] == [
        "is no longer in the source",
        "the source file is the same, but it decodes differently now; the libraries are those it was made with",
        "the source file has changed since it was compiled; build again",
        "the source file has changed since it was compiled, and cannot be compiled again: "
        "not an image in a format that Pillow can read",
    ]
    assert str(findings[0]) == f"c1/04.png in {raw / 'c1/04.png'} (shard {shards['c1/04.png']}): {findings[0].what}"


@in_this_process
def test_libraries_that_changed_are_named(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"pillow": "1.0", "numpy": "1.0"}
    monkeypatch.setattr("precompile.pipeline.compile_shard.library_versions", lambda media: versions)
    precompile.build(raw, tmp_path / "out", quiet=True, workers=1)
    monkeypatch.setattr(module, "library_versions", lambda media: {"pillow": "2.0", "numpy": "1.0", "torch": "9"})
    other_decoder(monkeypatch, (raw / "c1" / "07.png").read_bytes())
    ((finding,), _) = compare_with_source(tmp_path / "out", count=None)
    assert finding.what == "the source file is the same, but it decodes differently now (made with pillow 1.0, now 2.0)"


def test_a_decoder_that_crashes_is_a_finding(raw: Path, out: Path, in_workers: Callable[[str], Path]) -> None:
    bad = raw / "c1" / "07.png"
    bad.write_bytes(bad.read_bytes() + b"SEGV")
    precompile.build(raw, out, quiet=True, workers=1, store="flat", shard_size=800)
    in_workers(MISBEHAVING_DECODER)
    findings, compared = compare_with_source(out, count=None, options=BuildOptions(workers=2))
    assert (compared, [(finding.sample, finding.file) for finding in findings]) == (12, [("c1/07.png", str(bad))])
    assert findings[0].what == "cannot be compiled again: the decoder ended its process (SIGSEGV)"


@in_this_process
def test_a_damaged_record_is_not_taken_for_a_decoder_that_changed(out: Path) -> None:
    path, offset, _ = place(out, "c1/07.png")
    flip(path, offset)
    ((finding,), _) = compare_with_source(out, count=None)
    assert (finding.sample, finding.file, finding.is_in_shard) == ("c1/07.png", str(path), True)
    assert finding.what == "the stored record is damaged; run `precompile verify --full`"


@in_this_process
def test_a_source_that_moved(raw: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw.rename(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="raw: no such file or folder"):
        compare_with_source(out, count=2)
    assert compare_with_source(out, count=None, source=str(tmp_path / "elsewhere")) == ([], 12)
    save_image(tmp_path / "elsewhere" / "c2" / "02.png", 99)
    monkeypatch.chdir(tmp_path)
    ((finding,), _) = compare_with_source(out, count=None, source="elsewhere")
    assert finding.file == str(tmp_path / "elsewhere" / "c2" / "02.png")
    message = r"c1: has none of the chosen samples, such as 'c\d/\d\d\.png'; keys are paths relative to the source"
    with pytest.raises(SourceError, match=message):
        compare_with_source(out, count=3, source=str(tmp_path / "elsewhere" / "c1"))


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


@in_this_process
def test_a_dataset_from_a_python_object_is_refused(raw: Path, tmp_path: Path) -> None:
    precompile.build(_Memory(raw), tmp_path / "out", quiet=True, workers=1)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="built from a Python object; --against-source needs a folder or a table"):
        compare_with_source(tmp_path / "out", count=3)


@pytest.fixture
def table(raw: Path, tmp_path: Path) -> Path:
    write_table(tmp_path, lambda number: f"c{number % 2}", note=lambda number: f"note {number}")
    return tmp_path / "table.csv"


def write_table(folder: Path, label: Callable[[int], str], note: Callable[[int], str]) -> None:
    files = sorted((folder / "raw").rglob("*.png"), key=lambda path: path.name)
    rows = [f"{path.relative_to(folder)},{label(int(path.stem))},{note(int(path.stem))}\n" for path in files]
    (folder / "table.csv").write_text("path,label,note\n" + "".join(rows))


@in_this_process
def test_a_table_is_compared_with_its_columns(table: Path, raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    precompile.build(table, out, quiet=True, workers=1)
    assert compare_with_source(out, count=None) == ([], 12)
    save_image(raw / "c2" / "05.png", 77)
    (raw / "c2" / "08.png").unlink()
    write_table(tmp_path, lambda n: "a" if n == 3 else f"c{n % 2}", lambda n: "other" if n in (3, 4) else f"note {n}")
    with table.open("a") as file:
        file.write("raw/c2/08.png,c0,note 8\n")
    findings, compared = compare_with_source(out, count=None)
    assert compared == 11
    assert {finding.sample: (finding.file, finding.what) for finding in findings} == {
        f"raw/{key}": (str(raw / key), what)
        for key, what in {
            "c0/03.png": "the source now has another label, note for it; build again",
            "c1/04.png": "the source now has another note for it; build again",
            "c2/05.png": "the source file has changed since it was compiled; build again",
            "c2/08.png": "is no longer in the source",
        }.items()
    }


@in_this_process
def test_clips_of_varying_length(compiled_clips: Path, clips: Path, tmp_path: Path) -> None:
    assert compare_with_source(compiled_clips, count=None) == ([], 12)
    other = shutil.copytree(clips, tmp_path / "clips")
    key = precompile.CompiledDataset(compiled_clips).keys[4]
    samples, rate = soundfile.read(other / key)
    soundfile.write(other / key, samples[: len(samples) // 2], rate)
    ((finding,), compared) = compare_with_source(compiled_clips, count=None, source=str(other))
    assert (compared, finding.sample, finding.file) == (12, key, str(other / key))
    assert finding.what == "the source file has changed since it was compiled; build again"


@in_this_process
def test_equal_files_are_compared_each(tmp_path: Path) -> None:
    """They make equal shards, which have one name."""
    for number in range(6):
        save_image(tmp_path / "raw" / f"{number}.png", 1)
    precompile.build(tmp_path / "raw", tmp_path / "out", quiet=True, workers=1)
    assert compare_with_source(tmp_path / "out", count=None) == ([], 6)


@in_this_process
def test_the_temporary_folder_is_removed_and_the_generation_kept(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    seen: list[tuple[bool, int]] = []
    call = compile_sample.SampleCompiler.__call__

    def note(self: compile_sample.SampleCompiler, data: bytes) -> compile_sample.CompiledSample:
        shards = len(list((tmp_path / "tmp").glob("*/shards/*")))
        seen.append((is_in_use(generation_dir(out, 1)), shards))
        return call(self, data)

    monkeypatch.setattr(compile_sample.SampleCompiler, "__call__", note)
    assert compare_with_source(out, count=None, options=BuildOptions(workers=3)) == ([], 12)
    assert set(seen) == {(True, 0)}  # each shard is deleted when it has been looked at
    assert not is_in_use(generation_dir(out, 1))
    assert list((tmp_path / "tmp").iterdir()) == []
