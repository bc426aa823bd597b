"""Tables of paths, labels, splits and other columns."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precompile.errors import RecipeError, SourceError
from precompile.pipeline.recipe import make_recipe
from precompile.pipeline.sources._cells import factorize, floats, integers
from precompile.pipeline.sources.table import open_source


@pytest.fixture
def table(tree):
    """`table("path,label\\na.jpg,1", ...)` opens a table beside images a.jpg, b.jpg and sub/c.jpg."""

    def make(content: str | bytes, suffix: str = ".csv", **recipe):
        data = content if isinstance(content, bytes) else content.encode()
        root = tree("a.jpg", "b.jpg", "sub/c.jpg", "sub/d.wav", files={f"table{suffix}": data})
        return open_source(root / f"table{suffix}", make_recipe(**recipe))

    return make


def lines(*objects: dict) -> str:
    return "".join(json.dumps(value) + "\n" for value in objects)


def parts(source) -> list[dict]:
    """Parts of all samples, without the path."""
    return [{k: v for k, v in source[i].parts.items() if k != source.media} for i in range(len(source))]


def keys(source) -> list[str]:
    return [source[index].key for index in range(len(source))]


def test_order_is_the_tables(table):
    source = table("path\nsub/c.jpg\na.jpg\n")
    assert keys(source) == ["sub/c.jpg", "a.jpg"]
    assert source[0].parts == {"image": source.root / "sub/c.jpg"}
    assert (source.media, source.classes, source[0].split, source.left_out) == ("image", None, "all", {})


@pytest.mark.parametrize(
    ("content", "suffix"),
    [
        ("path,label\na.jpg,cat\nb.jpg,dog\n", ".csv"),
        (b"\xef\xbb\xbfpath,label\r\na.jpg,cat\r\nb.jpg,dog", ".csv"),
        ("PATH,Label\n\na.jpg,cat\n\n\nb.jpg,dog\n\n", ".CSV"),
        ('"path","label"\n"a.jpg","cat"\n"b.jpg","dog"\n', ".csv"),
        ("path, label\na.jpg, cat\nb.jpg, dog\n", ".csv"),
        ("path;label\na.jpg;cat\nb.jpg;dog\n", ".csv"),
        ("path|label\na.jpg|cat\nb.jpg|dog\n", ".csv"),
        ("path\tlabel\na.jpg\tcat\nb.jpg\tdog\n", ".tsv"),
        ("\ufeff" + lines({"path": "a.jpg", "label": "cat"}, {"label": "dog", "path": "b.jpg"}), ".jsonl"),
        ('{"path": "a.jpg", "label": "cat"}\r\n\r\n{"path": "b.jpg", "label": "dog"}', ".jsonl"),
    ],
)
def test_dialects(table, content, suffix):
    source = table(content, suffix)
    assert keys(source) == ["a.jpg", "b.jpg"]
    assert source.classes == ("cat", "dog")
    assert parts(source) == [{"label": "cat"}, {"label": "dog"}]


def test_quoted_cells(table):
    source = table('path,text\na.jpg,"one, ""two""\nthree"\nb.jpg,four\n')
    assert parts(source) == [{"text": 'one, "two"\nthree'}, {"text": "four"}]


@pytest.mark.parametrize("text", ['"lone', '"Well," he said', 'a "b" c'])
def test_tsv_with_lone_quotes(table, text):
    source = table(f"path\tsentence\na.jpg\t{text}\nb.jpg\tx\n", ".tsv")
    assert [part["sentence"] for part in parts(source)] == [text, "x"]


def test_cells_beyond_the_limit_of_the_csv_module(table):
    assert parts(table(f"path,text\na.jpg,{'x' * 200_000}\n"))[0]["text"] == "x" * 200_000


# columns


@pytest.mark.parametrize(
    "name", ["path", "file_name", "Filename", "image", "img_path", "audio_path", "slice_file_name"]
)
def test_path_column_by_its_name(table, name):
    assert keys(table(f"other,{name}\n1,a.jpg\n")) == ["a.jpg"]


def test_named_columns(table):
    source = table("path,where,kind,fold\nx,a.jpg,cat,1\ny,b.jpg,dog,2\n",
                   path_column="where", label_column="Kind", split_column="fold")  # fmt: skip
    assert parts(source) == [{"label": "cat", "path": "x"}, {"label": "dog", "path": "y"}]
    assert [source[i].split for i in range(2)] == ["1", "2"]


def test_no_path_column(table):
    with pytest.raises(RecipeError, match=r"table\.csv: no column with paths among 'id', 'breed'; --set path_column="):
        table("id,breed\n1,2\n")


@pytest.mark.parametrize("key", ["path_column", "label_column", "split_column"])
def test_named_column_that_is_missing(table, key):
    with pytest.raises(RecipeError, match="no column 'x'; the columns are 'path', 'label'"):
        table("path,label\na.jpg,1\n", **{key: "x"})


def test_split_column(table):
    source = table("path,split\na.jpg,train\nb.jpg,dev\nsub/c.jpg,train\n")
    assert [source[i].split for i in range(3)] == ["train", "dev", "train"]
    with pytest.raises(SourceError, match=r"line 3: expected the name of a split in column 'split', got ''"):
        table("path,split\na.jpg,train\nb.jpg,\n")


# paths


def test_prefix_and_suffix(table):
    assert keys(table("path\nc\n", path_prefix="sub", path_suffix=".jpg")) == ["sub/c.jpg"]


def test_paths_are_normalised_to_keys(table, tmp_path):
    outside = tmp_path / "outside.jpg"
    outside.touch()
    source = table(f"path\n./sub//../a.jpg\n{tmp_path}/data/b.jpg\n../outside.jpg\n")
    assert keys(source) == ["a.jpg", "b.jpg", str(outside)]
    assert source[2].parts["image"] == outside


def test_two_rows_of_one_file(table):
    with pytest.raises(SourceError, match=r"lines 2 and 4 both name 'a\.jpg'"):
        table("path\na.jpg\nb.jpg\n./a.jpg\nb.jpg\n")


def test_missing_files(table):
    content = "path\na.jpg\nno1.jpg\nno2.jpg\nno3.jpg\nno4.jpg\nsub.jpg\n"
    hints = "path_prefix.*path_suffix.*missing=quarantine"
    with pytest.raises(
        SourceError, match=rf"5 of 6 rows name no file: line 3 '.*/data/no1\.jpg', line 4 .*, line 5 [^,]*; .*{hints}"
    ):
        table(content)
    assert len(table(content, missing="quarantine")) == 6


@pytest.mark.parametrize(
    ("content", "suffix", "message"),
    [
        ("path,label\na.jpg,1\n,2\n", ".csv", r"line 3: expected a path, got ''"),
        ("path,label\na.jpg,1\nb.jpg\n", ".csv", r"line 3: expected 2 cells \(path, label\), got 1"),
        ('path,label\na.jpg,"1\n2"\nb.jpg,1,2\n', ".csv", "line 4: expected 2 cells"),
        ('path,label\na.jpg,"1" 2\n', ".csv", "line 2: "),
        ("path\ta\nb.jpg\t1\t2\n", ".tsv", "line 2: expected 2 cells"),
        ("path,a,a\na.jpg,1,2\n", ".csv", "column names must be unique, got 'path', 'a', 'a'"),
        ("", ".csv", "needs a header row, got an empty file"),
        ("path,label\n", ".csv", r"no rows below the header \('path', 'label'\)"),
        (b"path,label\na.jpg,\xe9t\xe9\n", ".csv", "must be UTF-8, got 0xe9"),
        ("path\na\0.jpg\n", ".csv", r"line 2: expected a path, got 'a\\x00\.jpg'"),
        ('{"path": "a.jpg"}\n{"path": "b.jpg"\n', ".jsonl", "line 2: not JSON"),
        ("[1]\n", ".jsonl", "line 1: expected one JSON object a line, got list"),
        ("[" * 100_000, ".jsonl", "line 1: not JSON"),
        (lines({"path": "a.jpg", "box": [1, 2]}), ".jsonl", r"line 1, box: expected text.*, got \[1, 2\]"),
        ('{"path": "\\ud800.jpg"}', ".jsonl", r"line 1, path: not valid Unicode"),
        (lines({"path": "a.jpg"}, {"label": 1}), ".jsonl", "line 2: expected a path, got ''"),
    ],
)  # fmt: skip
def test_bad_tables(table, content, suffix, message):
    with pytest.raises(SourceError, match=message):
        table(content, suffix)


# labels


def test_integer_labels(table):
    source = table("path,label\na.jpg,3\nb.jpg,\nsub/c.jpg,0\n")
    assert source.classes is None
    assert parts(source) == [{"label": 3}, {"label": -1}, {"label": 0}]


@pytest.mark.parametrize("cells", [("007", "1"), ("+7", "1"), ("1.0", "2"), ("1", "x"), ("99999999999999999999", "1")])
def test_labels_that_are_not_all_integers_are_names(table, cells):
    source = table(f"path,label\na.jpg,{cells[0]}\nb.jpg,{cells[1]}\nsub/c.jpg,\n")
    assert source.classes == tuple(sorted(cells))
    assert parts(source) == [{"label": cells[0]}, {"label": cells[1]}, {"label": -1}]


def test_json_strings_stay_names(table):
    source = table(lines({"path": "a.jpg", "label": "1"}, {"path": "b.jpg", "label": None}), ".jsonl")
    assert (source.classes, parts(source)) == (("1",), [{"label": "1"}, {"label": -1}])


def test_given_classes(table):
    source = table("path,label\na.jpg,dog\nb.jpg,cat\n", classes="dog,cat,cow")
    assert source.classes == ("dog", "cat", "cow")
    assert parts(source) == [{"label": "dog"}, {"label": "cat"}]
    with pytest.raises(SourceError, match=r"line 3: expected one of the classes cat, dog in column 'label', got 'cow'"):
        table("path,label\na.jpg,dog\nb.jpg,cow\n", classes="cat,dog")


def test_given_classes_for_integers(table):
    content = "path,label\na.jpg,1\nb.jpg,0\n"
    assert parts(table(content, classes="cat,dog")) == [{"label": "dog"}, {"label": "cat"}]
    assert table(content, classes="1,0").classes == ("1", "0")
    assert parts(table(content, classes="1,0")) == [{"label": "1"}, {"label": "0"}]
    with pytest.raises(SourceError, match=r"line 2: expected a label from 0 to 0 in column 'label', got '1'"):
        table(content, classes="cat")


# other columns


def test_types_of_columns(table):
    source = table("path,count,gain,id,maybe,score,tag\na.jpg,-1,1,007,1,0.5,\nb.jpg,20,2.5e-3,008,,,x\n")
    first, second = parts(source)
    assert first == {"count": -1, "gain": 1.0, "id": "007", "maybe": "1", "score": 0.5, "tag": ""}
    assert math.isnan(second.pop("score"))
    assert second == {"count": 20, "gain": 0.0025, "id": "008", "maybe": "", "tag": "x"}
    assert [type(first[name]) for name in ("count", "gain", "maybe")] == [int, float, str]


@pytest.mark.parametrize(
    "cells", [("nan", "1.5"), ("1_0", "1.5"), ("1e999", "1.5"), ("12345678901234567890", "1.5"), ("+1", "2")]
)
def test_what_only_looks_like_numbers_stays_text(table, cells):
    assert [part["x"] for part in parts(table(f"path,x\na.jpg,{cells[0]}\nb.jpg,{cells[1]}\n"))] == list(cells)


def test_json_values_keep_their_types(table):
    rows = [
        {"path": "a.jpg", "n": 1, "x": 1.0, "ok": True, "id": "1", "late": None},
        {"path": "b.jpg", "n": 2, "x": 2, "ok": False, "id": "2"},
    ]
    rows.append({"path": "sub/c.jpg", "n": 3, "x": 1e-7, "ok": True, "id": "3", "late": "here"})
    source = table(lines(*rows), ".jsonl")
    assert parts(source) == [
        {"n": 1, "x": 1.0, "ok": 1, "id": "1", "late": ""}, {"n": 2, "x": 2.0, "ok": 0, "id": "2", "late": ""},
        {"n": 3, "x": 1e-7, "ok": 1, "id": "3", "late": "here"}]  # fmt: skip


def test_names_of_fields(table):
    source = table(",path,Key,sample_rate,Größe (cm),2020,a b,a_b,a-b,_id\n0,a.jpg,1,2,3,4,5,6,7,8\n")
    assert list(parts(source)[0]) == [
        "column",
        "key_2",
        "sample_rate_2",
        "gr_e_cm",
        "column_2020",
        "a_b",
        "a_b_2",
        "a_b_3",
        "id",
    ]


# media


def test_media_by_suffix(table):
    assert table("path\nsub/d.wav\n").media == "audio"


@pytest.mark.parametrize("other", ["sub/d.wav", "table.csv"])
def test_media_that_is_not_clear(table, other):
    content = f"path\na.jpg\n{other}\n"
    suffix = other[other.index(".") :]
    with pytest.raises(RecipeError, match=r"all images or all audio, got .*--set media=image or") as error:
        table(content)
    assert f"1 {suffix}" in str(error.value)
    source = table(content, media="image")
    assert source[1].parts["image"] == source.root / other


# cells


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_integers_round_trip(values):
    assert integers(map(str, values)).tolist() == values


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_round_trip(values):
    assert floats(map(repr, values)).tolist() == values


@given(st.lists(st.text(max_size=3)))
def test_factorize_inverts(cells):
    names, codes = factorize(cells)
    assert list(names) == sorted(set(cells))
    assert [names[code] for code in codes] == cells


def test_table_below_the_source_with_paths_made_of_columns(tmp_path: Path) -> None:
    (tmp_path / "audio" / "fold2").mkdir(parents=True)
    (tmp_path / "audio" / "fold2" / "a.wav").touch()
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "list.csv").write_text("name,fold,class\na,2,dog\n")
    recipe = make_recipe(table="meta/list.csv", path_format="audio/fold{fold}/{name}.wav")
    source = open_source(tmp_path, recipe)
    assert source[0].key == "audio/fold2/a.wav"
    assert source[0].parts == {"audio": tmp_path / "audio/fold2/a.wav", "label": "dog", "name": "a", "fold": 2}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("{fold}/{nme}", "path_format names the column 'nme'; the columns are"), ("{fold", "path_format: expected '}'")],
)
def test_path_format_that_does_not_fit(tmp_path: Path, pattern: str, message: str) -> None:
    (tmp_path / "list.csv").write_text("name,fold\na,2\n")
    with pytest.raises(RecipeError, match=message):
        open_source(tmp_path / "list.csv", make_recipe(path_format=pattern))
