"""precompile.build: what it gives, from wherever it is called."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builds import REPOSITORY, content, events, quarantine, save_image, unchanged
from PIL import Image
from torchvision import datasets, transforms

import precompile
from precompile.errors import RecipeError, ShrinkError, SourceError, TooManyFailuresError
from precompile.pipeline.build import BuildOptions, Summary
from precompile.pipeline.recipe import make_recipe


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """12 png files of 8x8 in c0/ and c1/."""
    for number in range(12):
        save_image(tmp_path / "raw" / f"c{number % 2}" / f"{number:02d}.png", number)
    return tmp_path / "raw"


def build(source: Any, out: Path, /, **keys: Any) -> Summary:
    return precompile.build(source, out, **{"workers": 1, "quiet": True, **keys})


def test_summary(raw: Path, tmp_path: Path) -> None:
    (raw / "c0" / "notes.txt").write_text("left out")
    (raw / "c1" / "broken.png").write_bytes(b"no picture")
    summary = build(raw, tmp_path / "out")
    assert (summary.planned, summary.compiled, summary.reused, summary.quarantined) == (13, 12, 0, 1)
    assert (summary.left_out, summary.generation, summary.exit_code) == (1, 1, 3)
    assert summary.bytes == sum(path.stat().st_size for path in (tmp_path / "out" / "shards").iterdir())
    assert [failure.key for failure in summary.failures] == ["c1/broken.png"]
    assert list(summary.to_json()) == [
        "planned", "compiled", "reused", "quarantined", "left_out", "seconds", "generation", "fingerprint", "bytes",
        "new_failures", "exit_code", "finished_at",
    ]  # fmt: skip


def test_build_directory_is_empty_after_a_commit(raw: Path, tmp_path: Path) -> None:
    build(raw, tmp_path / "out")
    assert list((tmp_path / "out" / "build").iterdir()) == []
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        ".precompile.lock", "build", "generations", "manifest.json", "shards",
    }  # fmt: skip


@pytest.mark.parametrize("store", ["lmdb", "flat"])
def test_stored_pixels_labels_and_keys_are_the_source_s(raw: Path, tmp_path: Path, store: str) -> None:
    build(raw, tmp_path / "out", store=store)
    dataset = precompile.CompiledDataset(tmp_path / "out")
    reference = datasets.ImageFolder(str(raw), transform=transforms.PILToTensor())
    assert dataset.classes == reference.classes
    assert list(dataset.keys) == [str(Path(path).relative_to(raw)) for path, _ in reference.samples]
    for sample, (image, label) in zip(dataset, reference, strict=True):
        assert torch.equal(sample["image"], image)
        assert sample["label"] == label


def test_parity_with_torchvision(tmp_path: Path, make_photos: Callable[..., Path]) -> None:
    rng = np.random.default_rng(3)
    raw = make_photos(tmp_path / "raw", count=6, classes=3, splits=(), size=(375, 500))
    for number in range(54):
        height, width = rng.integers(330, 420).item(), rng.integers(450, 550).item()
        if number % 3 == 0:
            height, width = width, height
        coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
        exif = Image.Exif()
        exif[0x0112] = 1 + number % 8
        picture = coarse.resize((width, height), Image.Resampling.BICUBIC)
        picture.save(raw / f"class{number % 3}" / f"p{number:02d}.jpg", quality=92, exif=exif)
    build(raw, tmp_path / "out", size=256, crop=224, parity="torchvision", workers=2)
    resized = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.PILToTensor()])
    reference = datasets.ImageFolder(str(raw), transform=resized)
    dataset = precompile.CompiledDataset(tmp_path / "out", fields=("image", "label"))
    assert len(dataset) == len(reference) == 60
    assert dataset.classes == reference.classes
    assert dataset.class_to_idx == reference.class_to_idx
    assert dataset.targets.tolist() == reference.targets
    assert list(dataset.keys) == [str(Path(path).relative_to(raw)) for path, _ in reference.samples]
    for (image, label), (expected, expected_label) in zip(dataset, reference, strict=True):
        assert label == expected_label
        assert torch.equal(image, expected)


@pytest.mark.parametrize("seed", range(4))
def test_random_trees_add_up_and_read_back_exactly(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    names = ["plain", "ä 象", "with.dots.1", "UPPER", "-dash", "quo'te", "new\nline", "%41"]
    good, broken, left_out = {}, set(), 0
    for number in range(rng.randint(8, 40)):
        folder = f"class {rng.randrange(3)}" + rng.choice(["", "/sub", "/sub/deeper"])
        stem = f"{rng.choice(names)}{number}"
        key = f"{folder}/{stem}" + rng.choice([".png", ".PNG", ".bmp", ".tiff"])
        kind = rng.choice(["good"] * 5 + ["zero", "text", "cut", "noise", "other", "hidden"])
        path = tmp_path / "raw" / key
        if kind in ("other", "hidden"):
            path = path.with_name(f".{path.name}" if kind == "hidden" else f"{stem}.txt")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"left out")
            left_out += 1
            continue
        pixels = save_image(path, rng.randrange(10**6), side=rng.randint(1, 40) + 20)
        if kind == "good":
            good[key] = pixels
            continue
        broken.add(key)
        whole = path.read_bytes()
        path.write_bytes({"zero": b"", "text": b"just text\n", "cut": whole[: len(whole) // 2],
                          "noise": rng.randbytes(500)}[kind])  # fmt: skip
    save_image(tmp_path / "raw" / "class 0" / "one.png", 1)
    good["class 0/one.png"] = np.asarray(Image.open(tmp_path / "raw" / "class 0" / "one.png"))
    keys = {"store": rng.choice(["lmdb", "flat"]), "shard_size": rng.choice([None, 1, 5000]), "workers": 2}
    summary = build(tmp_path / "raw", tmp_path / "out", **keys)
    assert summary.planned == summary.compiled + summary.reused + summary.quarantined == len(good) + len(broken)
    assert (summary.quarantined, summary.left_out) == (len(broken), left_out)
    assert set(quarantine(tmp_path / "out")) == broken
    dataset = precompile.CompiledDataset(tmp_path / "out")
    assert set(dataset.keys) == set(good)
    for key, sample in zip(dataset.keys, dataset, strict=True):
        np.testing.assert_array_equal(sample["image"].permute(1, 2, 0).numpy(), good[key], err_msg=key)
        assert dataset.classes[sample["label"]] == key.split("/")[0]


SCRIPT = """
import precompile
summary = precompile.build({raw!r}, {out!r}, workers=2, quiet=True, shard_size=400)
print(summary.compiled)
"""


@pytest.mark.parametrize("how", ["script", "command", "stdin", "exec"])
def test_needs_no_main_guard(raw: Path, tmp_path: Path, how: str) -> None:
    """Nor a file: a notebook has none."""
    code = SCRIPT.format(raw=str(raw), out=str(tmp_path / "out"))
    (tmp_path / "train.py").write_text(code)
    arguments, given = {
        "script": ([str(tmp_path / "train.py")], None),
        "command": (["-c", code], None),
        "stdin": (["-"], code),
        "exec": (["-c", f"exec(compile({code!r}, '<cell 1>', 'exec'), {{'__name__': '__main__'}})"], None),
    }[how]
    done = subprocess.run(
        [sys.executable, *arguments], input=given, capture_output=True, text=True, timeout=60, check=False,
        cwd=tmp_path, env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "12\n", "")


SOURCE_MODULE = """
import io
from PIL import Image
from precompile.pipeline.sample import RawSample

class Circles:
    media, classes, left_out = "image", None, {}

    def __init__(self, folder=None):
        self.folder = folder

    def __len__(self):
        return 5

    def __getitem__(self, index):
        out = io.BytesIO()
        Image.new("RGB", (4, 4), (index, 0, 0)).save(out, "png")
        image = out.getvalue()
        if self.folder is not None and index % 2:
            image = self.folder / f"{index}.png"
            image.write_bytes(out.getvalue()) if not image.exists() else None
        return RawSample(f"{index}", "all", {"image": image, "label": index % 2, "text": "x" * index})
"""


@pytest.fixture
def circles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "circles_source.py").write_text(SOURCE_MODULE)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    import circles_source

    return circles_source.Circles


@pytest.mark.parametrize("mixed", [False, True])
def test_a_source_may_be_an_object(circles: Any, tmp_path: Path, mixed: bool) -> None:
    """Its samples are bytes, or some bytes and some files."""
    summary = build(circles(tmp_path if mixed else None), tmp_path / "out")
    assert (summary.compiled, summary.quarantined) == (5, 0)
    dataset = precompile.CompiledDataset(tmp_path / "out", fields=("image", "label", "text"))
    for index, (image, label, text) in enumerate(dataset):
        assert image[0].unique().tolist() == [index]
        assert (label, text) == (index % 2, "x" * index)


def test_a_recipe_key_may_be_named_source(raw: Path, tmp_path: Path) -> None:
    assert build(raw, tmp_path / "out", source="image_folder").compiled == 12
    with pytest.raises(SourceError, match=r"no audio file found, only 12 \.png"):
        build(raw, tmp_path / "other", source="audio_folder")


def test_recipe_from_file_object_and_keywords(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('size = 4\ncrop = 4\nstore = "flat"\n')
    from_file = build(raw, tmp_path / "file", recipe=str(tmp_path / "r.toml"), crop=3)
    from_object = build(raw, tmp_path / "object", recipe=make_recipe(size=4, crop=4, store="flat"), crop=3)
    from_keywords = build(raw, tmp_path / "keywords", size=4, crop=3, store="flat")
    assert len({from_file.fingerprint, from_object.fingerprint, from_keywords.fingerprint}) == 1
    assert precompile.CompiledDataset(tmp_path / "file")[0]["image"].shape == (3, 3, 3)


def test_options_from_object_and_keywords(raw: Path, tmp_path: Path) -> None:
    (raw / "c0" / "broken.png").write_bytes(b"")
    options = BuildOptions(workers=1, quiet=True, max_failures=1)
    assert precompile.build(raw, tmp_path / "a", options=options).exit_code == 0
    assert precompile.build(raw, tmp_path / "b", options=options, max_failures=0).exit_code == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "^workers must be at least 1, got workers=0"),
        ({"keep": 0}, "^keep must be at least 1, got keep=0"),
        ({"timeout_seconds": 0.0}, "^timeout must be more than 0 seconds, got timeout=0.0"),
        ({"timeout_seconds": float("nan")}, "^timeout must be more than 0 seconds, got timeout=nan"),
        ({"on_error": "skip"}, "^on_error must be quarantine or stop, got on_error='skip'"),
        *(({"max_failures": value}, "^max_failures must be N or P%, got max_failures=")
          for value in ("x", "", "%", "-1", "-1%", "1.5", "nan", "nan%", "inf", "inf%", "200%")),
    ],
)  # fmt: skip
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        BuildOptions(**options)


@pytest.mark.parametrize(("given", "allowed"), [(0, 0), ("3", 3), ("1%", 2), ("0.5%", 1), ("100%", 200), ("0%", 0)])
def test_allowed_failures(given: str | int, allowed: int) -> None:
    assert BuildOptions(max_failures=given).allowed_failures(200) == allowed


def test_an_unchanged_source_is_reused(raw: Path, tmp_path: Path) -> None:
    (raw / "c0" / "broken.png").write_bytes(b"broken")
    first = build(raw, tmp_path / "out")
    with unchanged(tmp_path / "out" / "shards", tmp_path / "out" / "generations", tmp_path / "out" / "manifest.json"):
        second = build(raw, tmp_path / "out")
    assert (second.planned, second.compiled, second.reused, second.quarantined) == (13, 0, 12, 1)
    assert (second.exit_code, second.failures, second.generation) == (0, (), 1)
    assert second.fingerprint == first.fingerprint


def test_rebuild_gives_the_same_bytes_in_a_new_generation(raw: Path, tmp_path: Path) -> None:
    first = build(raw, tmp_path / "out")
    second = build(raw, tmp_path / "out", rebuild=True)
    assert (second.compiled, second.reused, second.generation) == (12, 0, 2)
    assert second.fingerprint == first.fingerprint
    assert content(tmp_path / "out", 1) == content(tmp_path / "out", 2)


def test_a_known_failure_does_not_count_again(raw: Path, tmp_path: Path) -> None:
    (raw / "c0" / "broken.png").write_bytes(b"broken")
    assert build(raw, tmp_path / "out").exit_code == 3
    save_image(raw / "c0" / "new.png", 50)
    second = build(raw, tmp_path / "out")
    assert (second.planned, second.quarantined, second.exit_code, second.failures) == (14, 1, 0, ())
    (raw / "c0" / "broken.png").write_bytes(b"BROKEN")
    third = build(raw, tmp_path / "out")
    assert (third.exit_code, [row.key for row in third.failures]) == (3, ["c0/broken.png"])


def test_quarantined_inputs_are_retried_on_request(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are as they were; the decoder has learned."""
    (tmp_path / "site").mkdir()
    site = tmp_path / "site" / "sitecustomize.py"
    monkeypatch.syspath_prepend(tmp_path / "site")
    site.write_text(
        "import PIL.Image\nreal = PIL.Image.open\n"
        "def missing(file):\n    if file.getvalue()[:2] == b'BM':\n        raise OSError('no such codec')\n"
        "    return real(file)\n"
        "PIL.Image.open = missing\n"
    )
    save_image(raw / "c0" / "extra.bmp", 5)
    assert build(raw, tmp_path / "out").quarantined == 1
    site.write_text("")
    assert build(raw, tmp_path / "out").quarantined == 1
    retried = build(raw, tmp_path / "out", retry_quarantined=True)
    assert (retried.planned, retried.quarantined, retried.exit_code, retried.generation) == (13, 0, 0, 2)
    assert "c0/extra.bmp" in list(precompile.CompiledDataset(tmp_path / "out").keys)


def test_on_error_stop(raw: Path, tmp_path: Path) -> None:
    build(raw, tmp_path / "out")
    (raw / "c0" / "broken.png").write_bytes(b"broken")
    old = precompile.CompiledDataset(tmp_path / "out").fingerprint
    with pytest.raises(
        TooManyFailuresError, match=r"^c0/broken\.png: decode: not an image .*; stopped by on_error=stop"
    ):
        build(raw, tmp_path / "out", on_error="stop")
    assert precompile.CompiledDataset(tmp_path / "out").fingerprint == old


def test_nothing_is_committed_when_every_input_fails(tmp_path: Path) -> None:
    (tmp_path / "raw" / "c").mkdir(parents=True)
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "raw" / "c" / name).write_bytes(b"broken")
    with pytest.raises(
        TooManyFailuresError, match=r"^all 2 inputs failed, nothing was committed; the first: c/a\.jpg: "
    ):
        build(tmp_path / "raw", tmp_path / "out", order="source")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_shards_of_which_every_input_fails(raw: Path, tmp_path: Path) -> None:
    """Their receipts hold no record, and are read again by the next run, also of a --rebuild."""
    for number in range(6):
        (raw / "c0" / f"broken{number}.png").write_bytes(b"broken")
    keys = {"order": "source", "shard_size": 1, "rebuild": True}
    summary = build(raw, tmp_path / "out", **keys)
    assert (summary.planned, summary.compiled, summary.quarantined) == (18, 12, 6)
    for path in sorted(raw.rglob("[01]*.png"))[:3]:
        path.unlink()
    with pytest.raises(ShrinkError):
        build(raw, tmp_path / "out", **keys)
    resumed = build(raw, tmp_path / "out", **keys, allow_shrink=True, log_file=tmp_path / "log")
    assert (resumed.planned, resumed.compiled, resumed.quarantined) == (15, 9, 6)
    assert [event["resumed"] for event in events(tmp_path / "log") if event["event"] == "started"] == [15]


def test_a_shrunken_source_needs_leave(raw: Path, tmp_path: Path) -> None:
    build(raw, tmp_path / "out")
    for path in sorted(raw.rglob("*.png"))[:1]:
        path.unlink()
    assert build(raw, tmp_path / "out").planned == 11
    for path in sorted(raw.rglob("*.png"))[:2]:
        path.unlink()
    with pytest.raises(
        ShrinkError, match=r"would have 9 samples, the current one has 11; nothing was committed\. .*--allow"
    ):
        build(raw, tmp_path / "out")
    assert len(precompile.CompiledDataset(tmp_path / "out")) == 11
    assert build(raw, tmp_path / "out", allow_shrink=True).reused == 9


@pytest.mark.parametrize(("keep", "left"), [(1, [4]), (2, [3, 4]), (9, [1, 2, 3, 4])])
def test_keep(raw: Path, tmp_path: Path, keep: int, left: list[int]) -> None:
    out = tmp_path / "out"
    for size in (5, 6, 7, 8):
        build(raw, out, size=size, crop=size, keep=keep if size == 8 else 9)
    assert sorted(int(path.name) for path in (out / "generations").iterdir()) == left
    assert len(list((out / "shards").iterdir())) == len(left)
    for generation in left:
        dataset = precompile.CompiledDataset(out, generation=generation, fields="image")
        assert dataset[11].shape == (3, generation + 4, generation + 4)


def test_an_open_dataset_keeps_its_generation(raw: Path, tmp_path: Path) -> None:
    build(raw, tmp_path / "out")
    dataset = precompile.CompiledDataset(tmp_path / "out", fields="image")
    expected = [image.clone() for image in dataset]
    for size in (3, 4, 5):
        build(raw, tmp_path / "out", size=size, keep=1)
    assert all(torch.equal(image, was) for image, was in zip(dataset, expected, strict=True))


def test_dry_run_writes_nothing(raw: Path, tmp_path: Path) -> None:
    with unchanged(tmp_path):
        summary = build(raw, tmp_path / "out", dry_run=True, log_file=tmp_path / "log")
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / "log").exists()
    assert (summary.planned, summary.compiled, summary.exit_code) == (12, 0, 0)


def test_a_lost_shard_is_built_again(raw: Path, tmp_path: Path) -> None:
    build(raw, tmp_path / "out")
    next((tmp_path / "out" / "shards").iterdir()).unlink()
    assert build(raw, tmp_path / "out").compiled == 12
    assert len(list(precompile.CompiledDataset(tmp_path / "out"))) == 12


def test_log_file(raw: Path, tmp_path: Path) -> None:
    (raw / "c0" / "broken.png").write_bytes(b"broken")
    build(raw, tmp_path / "out", log_file=tmp_path / "log", shard_size=800)
    lines = events(tmp_path / "log")
    assert all({"time", "level", "event"} <= set(line) for line in lines)
    names = [line["event"] for line in lines]
    assert (names[0], names[-1]) == ("started", "committed")
    assert names.count("shard finished") == lines[0]["tasks"] > 1
    assert [line["sample"] for line in lines if line["event"] == "quarantined"] == ["c0/broken.png"]


def test_a_source_that_is_gone_leaves_the_dataset(raw: Path, tmp_path: Path) -> None:
    build(raw, tmp_path / "out")
    shutil.rmtree(raw)
    with unchanged(tmp_path), pytest.raises(SourceError, match="raw: no such file or folder"):
        build(raw, tmp_path / "out")


def test_summary_names_match_the_command_line() -> None:
    assert {field.name for field in fields(Summary)} - set(Summary(*[0] * 7, "", 0).to_json()) == {
        "failures", "forecast",
    }  # fmt: skip
