"""Finding the kind of a raw dataset."""

from __future__ import annotations

import pytest

from precompile.errors import RecipeError, SourceError
from precompile.pipeline import plugins
from precompile.pipeline.recipe import make_recipe
from precompile.pipeline.sources import open_source


def test_choices_are_the_layouts_only():
    assert plugins.choices("sources") == ("audio_folder", "image_folder", "table")


@pytest.mark.parametrize(("name", "media"), [("a/x.JPEG", "image"), ("a/x.oga", "audio"), ("x.wav", "audio")])
def test_folder_of_one_media(tree, name, media):
    assert open_source(tree(name), make_recipe()).media == media


@pytest.mark.parametrize("table", ["metadata.csv", "metadata.tsv", "metadata.jsonl"])
def test_table_beside_files_stays_a_folder(tree, table):
    source = open_source(tree("cat/x.jpg", table), make_recipe())
    assert source.left_out == {table.removeprefix("metadata"): 1}


def test_both_media(tree):
    root = tree("a/x.jpg", "a/y.png", "a/x.wav")
    with pytest.raises(RecipeError, match=r"2 image files \(1 .jpg, 1 .png\) and 1 audio files \(1 .wav\).*--source"):
        open_source(root, make_recipe())
    audio = open_source(root, make_recipe(source="audio_folder"))
    assert (len(audio), audio.left_out) == (1, {".jpg": 1, ".png": 1})


def test_nothing_known(tree):
    with pytest.raises(SourceError, match=r"only 2 \.txt, 1 hidden; known suffixes are image: .*\.jpg.*audio: .*\.wav"):
        open_source(tree("a/x.txt", "b/y.TXT", ".DS_Store"), make_recipe())


def test_only_a_table(tree):
    with pytest.raises(SourceError, match="to compile the rows of a table, give its path"):
        open_source(tree("train.csv"), make_recipe())


def test_no_such_root(tmp_path):
    with pytest.raises(SourceError, match=r"nowhere: no such file or folder"):
        open_source(tmp_path / "nowhere", make_recipe())


def test_file_of_another_kind(tree):
    with pytest.raises(SourceError, match=r"x\.zip: must be a folder or a table \(\.csv, \.tsv, \.jsonl\)"):
        open_source(tree("x.zip") / "x.zip", make_recipe())


def test_unknown_source(tree):
    with pytest.raises(RecipeError, match="no source named 'tar'; choose from audio_folder, image_folder, table"):
        open_source(tree("a/x.jpg"), make_recipe(source="tar"))


@pytest.mark.parametrize("name", ["_walk", "image_folder.x"])
def test_helpers_are_no_sources(name):
    with pytest.raises(RecipeError, match="no source named"):
        plugins.load("sources", name)


def test_kind_that_does_not_fit(tree):
    root = tree("a/x.jpg", "t.csv")
    with pytest.raises(SourceError, match="image_folder needs a folder, got a file"):
        open_source(root / "t.csv", make_recipe(source="image_folder"))
    with pytest.raises(SourceError, match=r"a table must be a file of \.csv, \.tsv, \.jsonl"):
        open_source(root, make_recipe(source="table"))


def test_relative_root(tree, monkeypatch):
    monkeypatch.chdir(tree("a/x.jpg").parent)
    sample = open_source("data", make_recipe())[0]
    assert sample.key == "a/x.jpg"
    assert sample.parts["image"].is_absolute()
