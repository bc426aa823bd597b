"""What every source must be, whatever its layout."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from precompile.pipeline.recipe import make_recipe
from precompile.pipeline.sample import RawSample, Source
from precompile.pipeline.sources import open_source

IMAGES = ("train/cat/1.jpg", "train/cat/sub dir/2.PNG", "train/dög/1.jpg", "val/cat/1.jpg", "test/x.jpg")
CSV = b"path,label,weight\n" + b"".join(b"%s,%d,1.5\n" % (path.encode(), number) for number, path in enumerate(IMAGES))
JSONL = b'{"path": "train/cat/1.jpg", "label": "cat", "split": "train"}\n{"path": "test/x.jpg", "split": "test"}\n'


@pytest.fixture(params=["image_splits", "image_classes", "image_flat", "audio_classes", "csv", "jsonl"])
def source(request: pytest.FixtureRequest, tree) -> Source:
    splits = "auto"
    match request.param:
        case "image_splits":
            root = tree(*IMAGES)
        case "image_classes":
            root, splits = tree(*IMAGES), "none"
        case "image_flat":
            root = tree("b.jpg", "a.jpg")
        case "audio_classes":
            root = tree("yes/b.wav", "no/a.flac")
        case "csv":
            root = tree(*IMAGES, files={"table.csv": CSV}) / "table.csv"
        case "jsonl":
            root = tree(*IMAGES, files={"table.jsonl": JSONL}) / "table.jsonl"
    return open_source(root, make_recipe(splits=splits))


def samples(source: Source) -> Iterator[RawSample]:
    return (source[index] for index in range(len(source)))


def test_is_a_source(source):
    assert isinstance(source, Source)
    assert source.media in ("image", "audio")
    assert len(source) > 0


def test_pickling_keeps_all(source):
    copy = pickle.loads(pickle.dumps(source))
    assert list(samples(copy)) == list(samples(source))
    assert (copy.media, copy.classes, copy.left_out) == (source.media, source.classes, source.left_out)


def test_keys_are_unique_relative_paths(source):
    keys = [sample.key for sample in samples(source)]
    assert len(set(keys)) == len(source)
    assert not any(PurePosixPath(key).is_absolute() or "\\" in key or ".." in key for key in keys)


def test_files_exist_where_the_key_says(source):
    for sample in samples(source):
        path = sample.parts[source.media]
        assert isinstance(path, Path)
        assert path.is_absolute()
        assert path.is_file()
        assert path.as_posix().endswith(f"/{sample.key}")


def test_labels_are_in_the_class_map_or_integers(source):
    labels = [sample.parts["label"] for sample in samples(source) if "label" in sample.parts]
    assert len(labels) in (0, len(source))
    assert all(isinstance(label, int) or label in source.classes for label in labels)


@pytest.mark.parametrize("offset", [0, 1])
def test_index_beyond_the_end(source, offset):
    with pytest.raises(IndexError, match=f"index {len(source) + offset} is out of range for {len(source)} samples"):
        source[len(source) + offset]


def test_negative_index_is_refused(source):
    with pytest.raises(IndexError, match="index -1 is out of range"):
        source[-1]


def test_pickle_is_less_than_a_hundred_bytes_a_sample(tree):
    root = tree(*(f"class/{number:06}.jpg" for number in range(2000)))
    assert len(pickle.dumps(open_source(root, make_recipe()))) < 2000 * 100
