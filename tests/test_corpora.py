"""Odd real files, compared with reference results that other programs gave."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import torchaudio
from builds import Outcome, cli, quarantine
from PIL import Image

import precompile

EXACT = "exact"
"""Equal to the RGB bytes of the reference, to which the EXIF orientation is applied."""
DEEP_GRAY = "deep gray"
"""16 bits become 8 by the range of their type."""
IMAGE_OUTCOMES = {
    "libjpeg-turbo/testimages/monkey12.jpg": "decode: not an image in a format that Pillow can read",
    "mmpretrain/dataset/3.jpeg": "read: empty file (0 bytes)",
    "pillow/broken.png": "decode: not an image in a format that Pillow can read",
    "pillow/decompression_bomb.gif": "decode: 4364696535 pixels are more than max_pixels=178956970",
    "pillow/truncated_jpeg.jpg": "decode: image file is truncated",
    "pngsuite/png/xdtn0g01.png": "decode: cannot load this image",
    "torchvision/damaged_png/sigsegv.png": "decode: Truncated File Read",
    "pillow/16bit.cropped.tif": DEEP_GRAY,
    "pngsuite/png/basn0g16.png": DEEP_GRAY,
}
"""What becomes of each file that is not simply EXACT."""

AUDIO_OUTCOMES = {
    "pydub/test1_empty.wav": "decode: no audio frames",
    "scipy/test-44100Hz-le-1ch-4bytes-incomplete-chunk.wav": "decode: libsndfile: Error in WAV file.",
    "scipy/test-8000Hz-le-3ch-5S-64bit.wav": "decode: libsndfile: File contains data in an unimplemented format.",
}
SAMPLE_RATE = 16_000
N_FFT = 400


def references(corpora: Path, media: str) -> dict[str, dict[str, Any]]:
    lines = (corpora / f"reference_{media}.jsonl").read_text().splitlines()
    return {row["path"].partition("/")[2]: row for row in map(json.loads, lines)}


def compile_corpus(source: Path, out: Path, media: str, *arguments: object) -> Outcome:
    return cli(
        "build", source, out, "--source", f"{media}_folder", "--set", "splits=none", "--json", "--quiet", *arguments
    )


def check_counts(done: Outcome, source: Path, references: dict[str, Any], outcomes: dict[str, str]) -> None:
    """Every file is accounted for, and new failures make the exit code 3."""
    failed = [outcome for outcome in outcomes.values() if ": " in outcome]
    files = [path for path in source.rglob("*") if path.is_file()]
    assert done.code == 3
    assert done.json["planned"] + done.json["left_out"] == len(files)
    assert done.json["planned"] == done.json["compiled"] + done.json["quarantined"] == len(references)
    assert (done.json["quarantined"], done.json["left_out"]) == (len(failed), 0)


def check_quarantine(out: Path, outcomes: dict[str, str]) -> None:
    expected = {key: outcome for key, outcome in outcomes.items() if ": " in outcome}
    rows = quarantine(out)
    assert set(rows) == set(expected)
    for key, outcome in expected.items():
        assert f"{rows[key]['stage']}: {rows[key]['message']}".startswith(outcome), key


@pytest.fixture(scope="module")
def images(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    out = tmp_path_factory.mktemp("corpora") / "images.pc"
    return compile_corpus(corpora / "images", out, "image"), out


def test_every_image_is_accounted_for(corpora: Path, images: tuple[Outcome, Path]) -> None:
    done, out = images
    reference = references(corpora, "images")
    check_counts(done, corpora / "images", reference, IMAGE_OUTCOMES)
    check_quarantine(out, IMAGE_OUTCOMES)
    failed = {key for key, outcome in IMAGE_OUTCOMES.items() if ": " in outcome}
    assert failed == {key for key, row in reference.items() if not row["result"].get("ok")}
    assert sorted(precompile.CompiledDataset(out).keys) == sorted(set(reference) - failed)


def test_images_equal_the_reference(corpora: Path, images: tuple[Outcome, Path]) -> None:
    reference = references(corpora, "images")
    dataset = precompile.CompiledDataset(images[1], fields="image")
    exact = 0
    for key, image in zip(dataset.keys, dataset, strict=True):
        if IMAGE_OUTCOMES.get(key, EXACT) == EXACT:
            pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
            assert list(pixels.shape) == reference[key]["result"]["rgb_shape"], key
            assert hashlib.sha256(pixels.tobytes()).hexdigest() == reference[key]["result"]["rgb_sha256"], key
            exact += 1
    assert exact == len(reference) - len(IMAGE_OUTCOMES)


def test_deep_gray_is_scaled(corpora: Path, images: tuple[Outcome, Path]) -> None:
    dataset = precompile.CompiledDataset(images[1], fields="image")
    number = {key: index for index, key in enumerate(dataset.keys)}
    deep = [key for key, outcome in IMAGE_OUTCOMES.items() if outcome == DEEP_GRAY]
    for key in deep:
        with Image.open(corpora / "images" / key) as image:
            expected = np.rint(np.asarray(image) / 257.0)
        for channel in dataset[number[key]].numpy():
            np.testing.assert_array_equal(channel, expected, err_msg=key)


def test_parity_gives_what_plain_pillow_gives(corpora: Path, tmp_path: Path) -> None:
    """With parity=torchvision the orientation is ignored, and 16 bits are clipped as in the reference."""
    out = tmp_path / "out"
    done = compile_corpus(corpora / "images", out, "image", "--parity", "torchvision", "--store", "flat")
    reference = references(corpora, "images")
    check_counts(done, corpora / "images", reference, IMAGE_OUTCOMES)
    dataset = precompile.CompiledDataset(out, fields="image")
    different = set()
    for key, image in zip(dataset.keys, dataset, strict=True):
        pixels = image.permute(1, 2, 0).numpy()
        with Image.open(corpora / "images" / key) as plain:
            np.testing.assert_array_equal(pixels, np.asarray(plain.convert("RGB")), err_msg=key)
        if hashlib.sha256(pixels.tobytes()).hexdigest() != reference[key]["result"]["rgb_sha256"]:
            different.add(key)
    assert different == {"pillow/hopper_orientation_3.webp", "pillow/hopper_orientation_6.jpg"}


@pytest.fixture(scope="module")
def expected_audio(corpora: Path) -> dict[str, tuple[np.ndarray, float]]:
    """Log-mel spectrogram and duration of each readable file, by soundfile and torchaudio alone."""
    mel = torchaudio.transforms.MelSpectrogram(SAMPLE_RATE, n_fft=N_FFT, hop_length=160, n_mels=80)
    found = {}
    for key in references(corpora, "audio"):
        if key in AUDIO_OUTCOMES:
            continue
        frames, rate = soundfile.read(corpora / "audio" / key, dtype="float32", always_2d=True)
        samples = torchaudio.functional.resample(torch.from_numpy(frames.mean(axis=1)), rate, SAMPLE_RATE)
        samples = torch.nn.functional.pad(samples, (0, max(0, N_FFT - len(samples))))
        found[key] = mel(samples).clamp(min=1e-10).log().numpy(), len(frames) / rate
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_spectrograms_equal_torchaudio(
    corpora: Path, tmp_path: Path, expected_audio: dict[str, tuple[np.ndarray, float]], dtype: str
) -> None:
    out = tmp_path / "out"
    done = compile_corpus(corpora / "audio", out, "audio", "--sample-rate", SAMPLE_RATE, "--dtype", dtype)
    check_counts(done, corpora / "audio", references(corpora, "audio"), AUDIO_OUTCOMES)
    check_quarantine(out, AUDIO_OUTCOMES)
    dataset = precompile.CompiledDataset(out)
    assert list(dataset.keys) == sorted(expected_audio)
    for key, sample in zip(dataset.keys, dataset, strict=True):
        expected, duration_seconds = expected_audio[key]
        found = sample["spectrogram"].numpy()
        assert found.dtype == dtype
        assert found.shape == expected.shape, key
        rounding = 2**-11 if dtype == "float16" else 0.0
        np.testing.assert_allclose(found.astype(np.float32), expected, rtol=rounding, atol=1e-5, err_msg=key)
        assert sample["sample_rate"] == SAMPLE_RATE
        assert sample["duration_seconds"] == duration_seconds, key


def test_the_corpus_has_clips_shorter_than_a_window(expected_audio: dict[str, tuple[np.ndarray, float]]) -> None:
    """So that zero-padding to n_fft was compared above: such clips have 1 + 400 // 160 frames."""
    short = [key for key, (_, seconds) in expected_audio.items() if seconds * SAMPLE_RATE < N_FFT]
    assert len(short) >= 3
    assert all(expected_audio[key][0].shape == (80, 3) for key in short)
