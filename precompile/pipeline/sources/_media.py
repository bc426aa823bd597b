"""What a file is, told from its name or from its first bytes."""

from __future__ import annotations

import re

IMAGE, AUDIO = "image", "audio"
IMAGE_SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".ppm", ".bmp", ".pgm", ".pbm", ".pnm", ".tif", ".tiff",
    ".webp", ".gif", ".avif", ".jp2", ".j2k", ".dib", ".apng",
})  # fmt: skip
AUDIO_SUFFIXES = frozenset({
    ".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aif", ".aiff", ".aifc", ".au", ".snd", ".sph",
    ".nist", ".caf", ".w64", ".rf64", ".m4a", ".aac", ".webm", ".wma", ".mp2",
})  # fmt: skip
SUFFIXES = {IMAGE: IMAGE_SUFFIXES, AUDIO: AUDIO_SUFFIXES}
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl")
NO_SUFFIX = "no suffix"
HEAD_SIZE = 32
"""Bytes that `media_of_head` needs."""

_MEDIA_OF_SUFFIX = {suffix: media for media, suffixes in SUFFIXES.items() for suffix in suffixes}
MEDIA_OF_ENDING = _MEDIA_OF_SUFFIX | {suffix.upper(): media for suffix, media in _MEDIA_OF_SUFFIX.items()}
"""By what a name has from its last dot on, as most names have it; `.Jpg` needs `suffix_of`."""
_SUFFIX = re.compile(r"\.(?=[0-9_+-]*[a-z])[a-z0-9_+-]{1,12}")
_SYSTEM_NAMES = frozenset({"thumbs.db", "desktop.ini", "__macosx", "@eadir", "lost+found"})


def is_hidden(name: str) -> bool:
    """Whether a file or folder is an operating system's or a tool's own, not the dataset's."""
    return name.startswith(".") or name.lower() in _SYSTEM_NAMES


def suffix_of(name: str) -> str:
    """`.jpg` in lower case, or `no suffix`.

    Dots are common inside names (`jazz.00054`, `Dr. Who`), so a suffix has a letter and at most 12 characters.
    """
    suffix = name[name.rfind(".") :].lower()
    return suffix if suffix in _MEDIA_OF_SUFFIX or _SUFFIX.fullmatch(suffix) else NO_SUFFIX


def media_of_suffix(suffix: str) -> str | None:
    """`image`, `audio` or None."""
    return _MEDIA_OF_SUFFIX.get(suffix)


def media_of_head(head: bytes) -> str | None:
    """`image`, `audio` or None, from the magic bytes at the start of a file."""
    if head.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*")):
        return IMAGE
    if head.startswith(b"BM") and head[6:10] == b"\0\0\0\0" and head[15:18] == b"\0\0\0":
        return IMAGE
    if head.startswith((b"fLaC", b"OggS", b"ID3", b".snd", b"NIST_1A")) or _is_mpeg_frame(head):
        return AUDIO
    form = (head[:4], head[8:12])
    if form == (b"RIFF", b"WEBP"):
        return IMAGE
    return AUDIO if form in ((b"RIFF", b"WAVE"), (b"FORM", b"AIFF"), (b"FORM", b"AIFC")) else None


def _is_mpeg_frame(head: bytes) -> bool:
    """An MPEG audio frame header of layer II or III. Layer I would match the byte order mark of UTF-16 text."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return False
    version, layer = head[1] >> 3 & 3, head[1] >> 1 & 3
    bitrate, sample_rate = head[2] >> 4, head[2] >> 2 & 3
    return version != 1 and layer in (1, 2) and bitrate != 15 and sample_rate != 3
