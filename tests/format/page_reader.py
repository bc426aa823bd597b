"""A reader of the format written after docs/format.md alone: it uses numpy and json, and nothing of the library."""

import json

import numpy as np


class PageReader:
    """Reads a dataset by whole files. `reader[i]` is a dict of sample i: arrays, numbers and str by field name."""

    def __init__(self, root):
        with open(f"{root}/manifest.json", encoding="utf-8") as file:
            self.manifest = json.load(file)
        assert self.manifest["format_version"] == 1
        self.folder = f"{root}/generations/{self.manifest['generation']:06d}"
        self.count = self.manifest["count"]
        self.arrays = [field for field in self.manifest["schema"] if field["shape"]]
        self.record = self.npy("record", "<i8", (self.count, 3))
        self.crc32 = self.npy("crc32", "<u4", (self.count,))
        self.keys = self.text("key")
        self.columns = {
            field["name"]: self.column(field) for field in self.manifest["schema"] if field not in self.arrays
        }
        self.shapes = {field["name"]: self.field_shapes(field) for field in self.arrays}
        self.shards = [
            self.shard(f"{root}/shards/{shard['file']}", shard["bytes"]) for shard in self.manifest["shards"]
        ]

    def npy(self, name, dtype, shape):
        with open(f"{self.folder}/{name}.npy", "rb") as file:
            content = file.read()
        assert content[:8] == bytes.fromhex("93 4E 55 4D 50 59 01 00")
        values = 10 + int.from_bytes(content[8:10], "little")
        described = {"<": f"'descr': '{dtype}'", "|": f"'descr': '|{dtype[1:]}'"}
        header = content[10:values].decode("latin1")
        assert any(text in header for text in described.values())
        assert "'fortran_order': False" in header
        return np.frombuffer(content[values:], dtype).reshape(shape)

    def text(self, name):
        offsets = self.npy(f"{name}.offsets", "<i8", (self.count + 1,)).tolist()
        data = self.npy(f"{name}.data", "<u1", (-1,)).tobytes()
        assert (offsets[0], offsets[-1]) == (0, len(data))
        return [data[offsets[i] : offsets[i + 1]].decode() for i in range(self.count)]

    def column(self, field):
        name = f"column.{field['name']}"
        return self.text(name) if field["dtype"] == "utf8" else self.npy(name, code(field), (self.count,)).tolist()

    def field_shapes(self, field):
        if None not in field["shape"]:
            return [field["shape"]] * self.count
        return self.npy(f"shape.{field['name']}", "<i8", (self.count, len(field["shape"]))).tolist()

    def shard(self, path, num_bytes):
        content = np.fromfile(path, np.uint8)
        assert len(content) == num_bytes
        return content

    def stored(self, index):
        """The bytes of a record."""
        shard, offset, length = self.record[index].tolist()
        assert offset % 64 == 0
        return self.shards[shard][offset : offset + length]

    def __getitem__(self, index):
        record, at, sample = self.stored(index), 0, {}
        for field in self.arrays:
            start = -(-at // 64) * 64
            sample[field["name"]], at = decode(field, self.shapes[field["name"]][index], record, start)
        assert at == len(record)
        return sample | {name: values[index] for name, values in self.columns.items()}

    def split(self, name):
        """The numbers of a split's samples."""
        (found,) = [split for split in self.manifest["splits"] if split["name"] == name]
        return range(found["start"], found["start"] + found["count"])


def code(field):
    return np.dtype(field["dtype"]).newbyteorder("<").str.replace("|", "<")


def decode(field, shape, record, start):
    """An array of `shape`, and where its bytes end in the record."""
    if field["encoding"] == "bmp":
        return decode_bmp(shape, record, start)
    dtype = np.dtype(code(field))
    end = start + dtype.itemsize * int(np.prod(shape))
    elements = record[start:end].view(dtype)
    if field["encoding"] == "raw_hwc":
        channels, height, width = shape
        return elements.reshape(height, width, channels).transpose(2, 0, 1), end
    assert field["encoding"] == "raw"
    return elements.reshape(shape), end


def decode_bmp(shape, record, start):
    channels, height, width = shape
    pixels = start + {1: 1088, 3: 64, 4: 128}[channels]
    assert bytes(record[start : start + 2]) == b"BM"
    assert record[start + 10 : start + 14].view("<u4")[0] == pixels - start
    assert record[start + 18 : start + 26].view("<i4").tolist() == [width, height]
    assert record[start + 28 : start + 30].view("<u2")[0] == 8 * channels
    row = -(-width * channels // 4) * 4
    end = pixels + height * row
    rows = record[pixels:end].reshape(height, row)[::-1, : width * channels].reshape(height, width, channels)
    return rows[:, :, [0] if channels == 1 else [2, 1, 0, 3][:channels]].transpose(2, 0, 1), end
