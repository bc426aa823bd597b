"""What is planned and what is left out of a folder."""

from __future__ import annotations

import os
import socket
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from precompile.errors import StorageError
from precompile.pipeline.sources._media import AUDIO_SUFFIXES, IMAGE_SUFFIXES
from precompile.pipeline.sources._walk import walk

WAVE = b"RIFF\x24\0\0\0WAVEfmt "
MAGIC = {
    "image": [
        b"\xff\xd8\xff\xe0\0\x10JFIF", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"II*\0", b"MM\0*", b"RIFF\x24\0\0\0WEBPVP8 ",
        b"BM\x36\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0",
    ],
    "audio": [
        WAVE, b"fLaC\0", b"OggS\0", b"ID3\x04", b"\xff\xfb\x90\x00", b"FORM\0\0\0\0AIFFCOMM", b"FORM\0\0\0\0AIFC",
        b".snd", b"NIST_1A\n",
    ],
}  # fmt: skip


def listed(root: Path) -> tuple[set[str], set[str], Counter]:
    """Paths of images, paths of audio, and what is left out."""
    tree = walk(root)
    return set(tree.files["image"].paths()), set(tree.files["audio"].paths()), tree.left_out


@pytest.mark.parametrize("suffix", sorted(IMAGE_SUFFIXES | AUDIO_SUFFIXES))
def test_known_suffixes_in_any_case(tree, suffix):
    images, audio, left_out = listed(tree(f"x{suffix}", f"y{suffix.upper()}"))
    assert (images if suffix in IMAGE_SUFFIXES else audio) == {f"x{suffix}", f"y{suffix.upper()}"}
    assert not left_out


@pytest.mark.parametrize(("media", "head"), [(media, head) for media, heads in MAGIC.items() for head in heads])
@pytest.mark.parametrize("name", ["x", "jazz.00054", "x."])
def test_magic_bytes_of_files_without_suffix(tree, media, head, name):
    images, audio, _ = listed(tree(files={name: head}))
    assert (images, audio) == (({name}, set()) if media == "image" else (set(), {name}))


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"B",
        b"Read me first",
        b"\xff\xfeh\0e\0l\0",
        b"BMW and other cars",
        b"RIFF\0\0\0\0AVI ",
        b"\xff\xff\xff\xff",
    ],
)
def test_other_files_without_suffix(tree, head):
    assert listed(tree(files={"x": head})) == (set(), set(), Counter({"no suffix": 1}))


def test_known_suffix_with_any_content_is_planned(tree):
    assert listed(tree(files={"empty.jpg": b"", "text.jpg": b"hello", "wave.jpg": WAVE}))[0] == {
        "empty.jpg", "text.jpg", "wave.jpg"}  # fmt: skip


def test_unknown_suffix_is_left_out_unread(tree):
    root = tree(files={"a/x.dat": MAGIC["image"][0], "a/y.DAT": b"", "notes.txt": b""})
    assert listed(root) == (set(), set(), Counter({".dat": 2, ".txt": 1}))


@pytest.mark.parametrize("folder", ["", "train/", "train/cat/"])
@pytest.mark.parametrize(
    "name",
    [".DS_Store", "._x.jpg", "Thumbs.db", "desktop.ini", ".ipynb_checkpoints/x.jpg", "__MACOSX/cat/x.jpg",
     "@eaDir/x.jpg", "lost+found/x.jpg", ".hidden.jpg"],
)  # fmt: skip
def test_hidden_and_system_names(tree, folder, name):
    images, _, left_out = listed(tree("train/cat/1.jpg", folder + name))
    assert images == {"train/cat/1.jpg"}
    assert left_out == {"hidden": 1}


@pytest.mark.parametrize(
    "name", ["a b.jpg", "ü 猫.jpg", "line\nbreak.jpg", " lead.jpg", os.fsdecode(b"\xff\xe9.jpg"), "a\\b.jpg"]
)
def test_odd_names(tree, name):
    assert listed(tree(f"class {name}/{name}"))[0] == {f"class {name}/{name}"}


def test_stat_is_that_of_the_file_a_link_leads_to(tree):
    root = tree(files={"b.jpg": b"bb", "a.jpg": b"a", "c.JPG": b"ccc", "x": MAGIC["image"][0], "n.txt": b""})
    (root / "link.jpg").symlink_to(root / "n.txt")
    (root / "sub").mkdir()
    (root / "sub/d.jpg").write_bytes(b"dddd")
    files = walk(root).files["image"]
    assert files.folders == ["", "sub"]
    assert list(files.paths()) == ["a.jpg", "b.jpg", "c.JPG", "link.jpg", "x", "sub/d.jpg"]
    found = [(root / path).stat() for path in files.paths()]
    rows = [[s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for s in found]
    assert files.stat([0, 1]).tolist() == rows
    assert files.stat([1, 0]).tolist() == rows[-1:] + rows[:-1]


def test_media_that_is_not_wanted_is_left_out_by_suffix(tree):
    root = tree("a.jpg", "b.WAV", "c.wav", files={"d": WAVE, "e": MAGIC["image"][0]})
    tree = walk(root, ["image"])
    assert {media: list(files.paths()) for media, files in tree.files.items()} == {"image": ["a.jpg", "e"]}
    assert tree.left_out == {".wav": 2, "no suffix": 1}


def test_links_to_files_and_folders_outside_are_followed(tree, tmp_path):
    root = tree("a/x.jpg")
    (tmp_path / "outside/deep").mkdir(parents=True)
    (tmp_path / "outside/deep/y.jpg").touch()
    (root / "a/link.jpg").symlink_to(tmp_path / "outside/deep/y.jpg")
    (root / "b").symlink_to(tmp_path / "outside")
    (root / "c").symlink_to(tmp_path / "outside")
    assert listed(root)[0] == {"a/x.jpg", "a/link.jpg", "b/deep/y.jpg", "c/deep/y.jpg"}


def test_loops_end(tree):
    root = tree("a/x.jpg", "b/y.jpg")
    (root / "a/up").symlink_to(root)
    (root / "a/self").symlink_to(root / "a")
    (root / "a/b").symlink_to(root / "b")
    (root / "b/a").symlink_to(root / "a")
    images, _, left_out = listed(root)
    assert images == {"a/x.jpg", "b/y.jpg", "a/b/y.jpg", "b/a/x.jpg"}
    assert set(left_out) == {"symlink loop"}


def test_links_without_a_target(tree):
    root = tree("a/x.jpg")
    (root / "gone.jpg").symlink_to(root / "nowhere.jpg")
    (root / "self.jpg").symlink_to(root / "self.jpg")
    (root / "through.jpg").symlink_to(root / "a/x.jpg/y.jpg")
    assert listed(root) == ({"a/x.jpg"}, set(), Counter({"broken link": 3}))


def test_what_is_not_a_file_is_never_opened(tree, monkeypatch):
    root = tree("x.jpg")
    os.mkfifo(root / "pipe")
    os.mkfifo(root / "pipe.jpg")
    (root / "link").symlink_to(root / "pipe")
    (root / "null.jpg").symlink_to("/dev/null")
    monkeypatch.chdir(root)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.jpg")
        assert listed(root) == ({"x.jpg"}, set(), Counter({"not a file": 5}))


@pytest.fixture
def forbidden():
    """A root with `a/secret`, `top/closed/` that this process may not read, and `links/` to the latter."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        (root / "a").mkdir()
        (root / "a/x.jpg").touch()
        (root / "a/secret").touch(mode=0)
        (root / "top/closed").mkdir(parents=True)
        (root / "top/closed").chmod(0)
        (root / "links").mkdir()
        (root / "links/x.jpg").symlink_to(root / "top/closed/x.jpg")
        if os.geteuid() == 0:
            os.seteuid(65534)
            yield root
            os.seteuid(0)
        else:
            yield root
        (root / "top/closed").chmod(0o700)


def test_folder_that_may_not_be_read(forbidden):
    with pytest.raises(StorageError, match=r"top/closed: cannot be read: Permission denied"):
        listed(forbidden / "top")


def test_link_into_a_folder_that_may_not_be_read(forbidden):
    with pytest.raises(StorageError, match=r"links/x\.jpg: cannot be read: Permission denied"):
        listed(forbidden / "links")


def test_file_without_suffix_that_may_not_be_read(forbidden):
    assert listed(forbidden / "a") == ({"x.jpg"}, set(), Counter({"unreadable": 1}))
