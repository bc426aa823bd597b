"""Class folders, split folders, labels and order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precompile.errors import RecipeError, SourceError
from precompile.pipeline.recipe import make_recipe
from precompile.pipeline.sources.audio_folder import open_source as open_audio
from precompile.pipeline.sources.image_folder import open_source


def rows(source) -> list[tuple]:
    """(split, key, label), label None when the samples have none."""
    samples = [source[index] for index in range(len(source))]
    return [(sample.split, sample.key, sample.parts.get("label")) for sample in samples]


def test_class_folders(tree):
    source = open_source(tree("dog/b.jpg", "cat/z/y/1.jpg", "cat/2.jpg"), make_recipe())
    assert source.classes == ("cat", "dog")
    assert rows(source) == [("all", "cat/2.jpg", "cat"), ("all", "cat/z/y/1.jpg", "cat"), ("all", "dog/b.jpg", "dog")]


def test_flat_folder_has_no_labels(tree):
    source = open_source(tree("b.jpg", "a.jpg"), make_recipe())
    assert source.classes is None
    assert rows(source) == [("all", "a.jpg", None), ("all", "b.jpg", None)]


def test_split_folders_share_one_class_map(tree):
    source = open_source(
        tree("train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg", "Val/a/1.jpg", "Val/c/1.jpg"), make_recipe()
    )
    assert source.classes == ("a", "b", "c")
    assert rows(source) == [
        ("Val", "Val/a/1.jpg", "a"), ("Val", "Val/c/1.jpg", "c"),
        ("train", "train/a/1.jpg", "a"), ("train", "train/b/1.jpg", "b"), ("train", "train/c/1.jpg", "c"),
    ]  # fmt: skip


def test_flat_split_beside_splits_with_classes(tree):
    source = open_source(tree("train/a/1.jpg", "test/2.jpg", "test/1.jpg"), make_recipe())
    assert rows(source) == [("test", "test/1.jpg", -1), ("test", "test/2.jpg", -1), ("train", "train/a/1.jpg", "a")]


def test_flat_splits_only(tree):
    source = open_source(tree("train/1.jpg", "test/1.jpg"), make_recipe())
    assert source.classes is None
    assert rows(source) == [("test", "test/1.jpg", None), ("train", "train/1.jpg", None)]


def test_one_split_only(tree):
    assert rows(open_source(tree("train/a/1.jpg"), make_recipe())) == [("train", "train/a/1.jpg", "a")]


def test_empty_class_folder_shifts_no_label(tree):
    assert open_source(tree("a/", "b/1.jpg", ".ipynb_checkpoints/1.jpg"), make_recipe()).classes == ("a", "b")


def test_files_beside_class_and_split_folders(tree):
    source = open_source(
        tree("0.jpg", "train/1.jpg", "train/2.jpg", "train/a/1.jpg", "train/readme.txt"), make_recipe()
    )
    assert source.left_out == {".txt": 1, "beside class folders": 2, "beside split folders": 1}
    assert len(source) == 1
    assert open_source(source.root / "train", make_recipe()).left_out == {".txt": 1, "beside class folders": 2}


def test_one_name_in_many_classes(tree):
    source = open_source(tree("a/1.jpg", "b/1.jpg", "c/1.jpg"), make_recipe())
    assert [key for _, key, _ in rows(source)] == ["a/1.jpg", "b/1.jpg", "c/1.jpg"]


def test_classes_sort_as_text(tree):
    assert open_source(tree(*(f"{n}/x.jpg" for n in range(11))), make_recipe()).classes[:3] == ("0", "1", "10")


def test_given_classes(tree):
    root = tree("0/x.jpg", "1/x.jpg", "10/x.jpg")
    source = open_source(root, make_recipe(classes=["1", "0", "10", "11"]))
    assert source.classes == ("1", "0", "10", "11")
    assert [label for _, _, label in rows(source)] == ["0", "1", "10"]
    with pytest.raises(RecipeError, match="class folder '10' is not in classes=0,1"):
        open_source(root, make_recipe(classes="0,1"))


def test_only_some_folders_look_like_splits(tree):
    root = tree("train/a/1.jpg", "val/a/1.jpg", "extra/a/1.jpg")
    with pytest.raises(
        RecipeError, match=r"'train', 'val' look like splits, 'extra' do not; --set splits=none .*splits=train,val "
    ):
        open_source(root, make_recipe())
    assert open_source(root, make_recipe(splits="none")).classes == ("extra", "train", "val")
    named = open_source(root, make_recipe(splits="train,val"))
    assert [split for split, _, _ in rows(named)] == ["train", "val"]
    assert named.left_out == {"not a split": 1}


def test_named_splits_of_any_name(tree):
    source = open_source(tree("fold1/a/1.jpg", "fold2/a/1.jpg"), make_recipe(splits="fold2,fold1"))
    assert rows(source) == [("fold1", "fold1/a/1.jpg", "a"), ("fold2", "fold2/a/1.jpg", "a")]


def test_named_split_that_is_missing(tree):
    with pytest.raises(RecipeError, match=r"no split folder 'val', got splits=train,val; the folders are 'train'"):
        open_source(tree("train/a/1.jpg"), make_recipe(splits="train,val"))


def test_nothing_planned(tree):
    with pytest.raises(SourceError, match=r"no image file found, only 1 \.txt, 1 \.wav; known suffixes: .*\.jpg"):
        open_source(tree("a/x.txt", "a/y.wav"), make_recipe())


def test_audio_folder_leaves_images_out(tree):
    source = open_audio(tree("yes/1.wav", "yes/spectrum.png", "no/1.wav", "no/1.txt"), make_recipe())
    assert source.media == "audio"
    assert source.left_out == {".png": 1, ".txt": 1}
    assert [source[i].parts for i in range(2)] == [
        {"audio": source.root / "no/1.wav", "label": "no"},
        {"audio": source.root / "yes/1.wav", "label": "yes"},
    ]


names = st.text("aB0 -.+é/", min_size=1, max_size=8).map(
    lambda name: "/".join(part for part in name.split("/") if part)
)
paths = st.builds("{}/{}{}".format, names, names, st.sampled_from([".jpg", ".PNG", ".webp"])).filter(
    lambda path: all(part and not part.startswith(".") for part in path.split("/"))
)


@settings(deadline=None)  # the first call imports torch
@given(paths=st.sets(paths, min_size=1, max_size=25))
def test_order_and_labels_are_torchvisions(paths):
    datasets = pytest.importorskip("torchvision.datasets", reason="needs torchvision")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for path in paths:
            try:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).touch()
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue  # the name of a folder is taken by a file
        expected = datasets.ImageFolder(root)
        source = open_source(root, make_recipe(splits="none"))
        assert list(source.classes) == expected.classes
        assert [
            (str(sample.parts["image"]), source.classes.index(sample.parts["label"]))
            for sample in (source[index] for index in range(len(source)))
        ] == expected.samples
