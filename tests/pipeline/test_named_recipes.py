"""The ready-made recipes are valid, described, and compile data laid out as they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

import precompile
from precompile.errors import RecipeError
from precompile.pipeline.compile_sample import make_compiler
from precompile.pipeline.named_recipes import description, read_recipe, recipe_names
from precompile.pipeline.recipe import make_recipe


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_valid_and_described(name):
    recipe = make_recipe(**read_recipe(name))
    media = "audio" if recipe.features else "image"
    assert make_compiler(recipe, media).fields
    assert 20 < len(description(name)) < 120


def test_unknown_recipe_names_the_choices():
    with pytest.raises(
        RecipeError, match=r"no recipe named 'nope'; choose from celeba, .*imagenet.*, or give a \.toml"
    ):
        read_recipe("nope")


def test_recipe_file_of_ones_own(tmp_path):
    (tmp_path / "mine.toml").write_text("size = 8\ncrop = 8\n")
    assert read_recipe(str(tmp_path / "mine.toml")) == {"size": 8, "crop": 8}
    with pytest.raises(RecipeError, match="no such recipe file"):
        read_recipe(str(tmp_path / "other.toml"))


def write_clip(path: Path, sample_rate: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.random.default_rng(0).uniform(-0.1, 0.1, sample_rate // 4), sample_rate)


@pytest.mark.slow
def test_esc50_and_urbansound8k_layouts(tmp_path):
    esc, urban = tmp_path / "esc", tmp_path / "urban"
    write_clip(esc / "audio" / "1-100032-A-0.wav", 44100)
    (esc / "meta").mkdir()
    (esc / "meta" / "esc50.csv").write_text(
        "filename,fold,target,category,esc10,src_file,take\n1-100032-A-0.wav,1,0,dog,True,100032,A\n"
    )
    write_clip(urban / "audio" / "fold5" / "100032-3-0-0.wav", 44100)
    write_clip(urban / "audio" / "fold7" / "100263-2-0-117.wav", 48000)
    (urban / "metadata").mkdir()
    (urban / "metadata" / "UrbanSound8K.csv").write_text(
        "slice_file_name,fsID,start,end,salience,fold,classID,class\n"
        "100032-3-0-0.wav,100032,0.0,0.3,1,5,3,dog_bark\n100263-2-0-117.wav,100263,58.5,62.5,1,7,2,children_playing\n"
    )
    precompile.build(esc, tmp_path / "esc.pc", recipe="esc50", quiet=True, workers=1)
    sample = precompile.CompiledDataset(tmp_path / "esc.pc")[0]
    assert sample["spectrogram"].shape[0] == 128
    assert (sample["fold"], sample["sample_rate"]) == (1, 44100)
    precompile.build(urban, tmp_path / "urban.pc", recipe="urbansound8k", quiet=True, workers=1)
    dataset = precompile.CompiledDataset(tmp_path / "urban.pc")
    assert list(dataset.keys) == ["audio/fold5/100032-3-0-0.wav", "audio/fold7/100263-2-0-117.wav"]
    assert dataset.classes == ["children_playing", "dog_bark"]
    assert [dataset[i]["sample_rate"] for i in range(2)] == [22050, 22050]


def test_celeba_and_speech_commands_layouts(tmp_path):
    faces, words = tmp_path / "faces", tmp_path / "words"
    (faces / "img_align_celeba").mkdir(parents=True)
    Image.new("RGB", (178, 218)).save(faces / "img_align_celeba" / "000001.jpg")
    (faces / "list_eval_partition.csv").write_text("image_id,partition\n000001.jpg,2\n")
    precompile.build(faces, tmp_path / "faces.pc", recipe="celeba", quiet=True, workers=1)
    sample = precompile.CompiledDataset(tmp_path / "faces.pc")[0]
    assert (tuple(sample["image"].shape), sample["partition"]) == ((3, 218, 178), 2)
    write_clip(words / "_background_noise_" / "noise.wav", 16000)
    with pytest.raises(RecipeError, match="_background_noise_"):
        precompile.build(words, tmp_path / "words.pc", recipe="speech_commands", quiet=True)
