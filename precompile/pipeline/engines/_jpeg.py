"""The markers of a JPEG (ITU-T T.81, annex B): enough to know that OpenCV and Pillow give the same pixels."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

_BASELINE, _PROGRESSIVE = 0xC0, 0xC2
_HUFFMAN_TABLES, _END, _SCAN, _QUANTIZATION_TABLES, _RESTART_INTERVAL = 0xC4, 0xD9, 0xDA, 0xDB, 0xDD
_APP1, _APP14, _COMMENT = 0xE1, 0xEE, 0xFE
_TABLES = frozenset({_HUFFMAN_TABLES, _QUANTIZATION_TABLES, _RESTART_INTERVAL, _COMMENT, *range(0xE0, 0xF0)})
_ADOBE_YCBCR = b"\x01"

_SEGMENT = struct.Struct(">BBH")
"""0xFF, marker, length of what follows the marker."""
_END_OF_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""Inside entropy-coded data 0xFF comes before a stuffed zero, a fill byte or the number of a restart marker."""


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """The frame of an ordinary JPEG."""

    height: int
    width: int
    has_app1: bool
    """Whether EXIF or XMP, and so perhaps an orientation, is there."""


def read_ordinary(data: bytes) -> JpegHeader | None:
    """The header of an ordinary JPEG, or None for everything else.

    Ordinary: baseline in one scan or progressive, Huffman coding, 8 bits, gray or YCbCr, whole up to its end marker,
    and no marker in it that does not belong there. (libjpeg meets a stray one only after the last row, where
    Pillow refuses the file and OpenCV has stopped reading.)
    """
    if data[:3] != b"\xff\xd8\xff":
        return None
    frame, is_progressive, has_app1, position = None, False, False, 2
    while position + _SEGMENT.size <= len(data):
        prefix, marker, length = _SEGMENT.unpack_from(data, position)
        start, position = position + _SEGMENT.size, position + 2 + length
        if prefix != 0xFF or length < 2:
            return None
        if marker == _SCAN:
            is_ordinary = frame is not None and _scans_are_whole(data, position, is_progressive)
            return JpegHeader(*frame, has_app1) if frame and is_ordinary else None
        if marker in (_BASELINE, _PROGRESSIVE) and frame is None:
            frame, is_progressive = _frame(data[start:position]), marker == _PROGRESSIVE
        elif marker not in _TABLES or (marker == _APP14 and _is_adobe_rgb(data[start:position])):
            return None
        has_app1 |= marker == _APP1
    return None


def _frame(payload: bytes) -> tuple[int, int] | None:
    """(height, width) of a frame header with 8 bits and one gray or three YCbCr components, else None."""
    if len(payload) < 6 or payload[0] != 8 or payload[5] not in (1, 3) or len(payload) != 6 + 3 * payload[5]:
        return None
    if payload[6::3] == b"RGB":  # component ids that libjpeg takes for RGB
        return None
    height, width = int.from_bytes(payload[1:3]), int.from_bytes(payload[3:5])
    return (height, width) if height and width else None


def _is_adobe_rgb(payload: bytes) -> bool:
    return payload[:5] == b"Adobe" and payload[11:12] != _ADOBE_YCBCR


def _scans_are_whole(data: bytes, position: int, is_progressive: bool) -> bool:
    """Whether the entropy-coded data from `position` on runs up to an end marker."""
    while found := _END_OF_SCAN.search(data, position):
        marker = data[found.start() + 1]
        if marker == _END:
            return True
        if not is_progressive or (marker != _SCAN and marker not in _TABLES):
            return False
        if found.end() + 2 > len(data):
            return False
        position = found.end() + int.from_bytes(data[found.end() : found.end() + 2])
    return False
