"""CompiledDataset: a map-style dataset that only reads memory."""

from __future__ import annotations

import copy
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.utils.data

from precompile.format.index import Column
from precompile.format.manifest import Manifest
from precompile.format.schema import TEXT, Schema
from precompile.format.stored import Stored
from precompile.format.text import TextColumn
from precompile.loading.caching.options import CacheOption, as_cache
from precompile.loading.processes import activity, purity
from precompile.loading.reading import form
from precompile.loading.reading.buffers import fresh_array
from precompile.loading.reading.collate import MakeArray, collate_values
from precompile.loading.reading.form import Fields, Transform, Transforms
from precompile.loading.reading.gathered import GatheredSamples, SampleGather

if TYPE_CHECKING:
    from precompile.loading.devices.resident import ResidentDataset


class CompiledDataset(torch.utils.data.Dataset[Any]):
    """The samples of a compiled dataset, or of one split of it, in source order.

    Args:
        root: the directory that `precompile build` wrote.
        fields: what a sample is. None: a dict of all fields. A name: that value alone. Several names: a tuple in
            that order, so `("image", "label")` is a drop-in for torchvision's ImageFolder.
        split: only this split, such as `train`; None is all samples.
        transform: called with the first array field of `fields` (the image, the spectrogram), as ImageFolder
            does; or a mapping from field names to callables.
        generation: a number from `precompile info --generations`; None is the current one. It stays the same for
            the life of this object and of its copies in workers, whatever is built meanwhile. As long as it is open,
            later builds do not remove it (a lease; see docs/format.md), so workers that start later find it too.
            Where the file system has no locks (Windows, some network mounts), what is open stays readable after a
            removal, but a worker that starts then raises DatasetNotFoundError.
        cache: read from a copy in memory, which is staged first when it is missing, once for all processes of this
            host: True (a RAM disk), a directory, or a Cache with all options. Only `fields` and `split` are staged,
            unless an entry with more is there (`precompile cache add`). Everything else is as without it.

    Array fields come as torch tensors that own their memory and may be written to, integer and float columns as
    Python numbers, text as str. Pickling carries the path and the options only. Safe in threads and after fork.

    Raises DatasetNotFoundError, FormatError (damaged or newer files), or ValueError (no such field or split); with a
    cache also NoRoomError, ForeignDirectoryError, StorageError, and BusyError (a process that stages is stuck).
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        fields: Fields = None,
        split: str | None = None,
        transform: Transforms = None,
        generation: int | None = None,
        cache: CacheOption = None,
    ) -> None:
        self.root = Path(os.path.abspath(root))
        self.fields: Fields = fields if fields is None or isinstance(fields, str) else tuple(fields)
        self.split = split
        self.transform = transform
        self.cache = as_cache(cache)
        self._opened_root: Path | None = None  # an entry of the cache, or the root
        self._generation = generation
        self._stored: Stored | None = None
        self._local = threading.local()
        self._generation = self.stored.manifest.generation
        self._check_options(self.schema)

    def _check_options(self, schema: Schema) -> None:
        form.check_form(self.fields, self.transform, schema, self.root)

    @property
    def stored(self) -> Stored:
        """The opened files; opened on first use in a process that unpickled this dataset."""
        if self._stored is None:
            stored = self._open()
            split = None if self.split is None else stored.manifest.split(self.split)
            self._start = 0 if split is None else split.start
            self._count = stored.manifest.count if split is None else split.count
            self._stored = stored
        return self._stored

    def _open(self) -> Stored:
        if self.cache is None:
            return Stored(self.root, self._generation)
        from precompile.loading.caching.opening import open_cached  # 35 ms that only who uses it needs

        stored = open_cached(
            self.root, self._generation, self.fields, self.split, self.cache, self._opened_root, self._check_options
        )
        self._opened_root = stored.root
        return stored

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"} | {"_stored": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _local=threading.local())

    def __copy__(self) -> CompiledDataset:
        """Shares the opened files, and so their lease, with this one."""
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__, _local=threading.local())
        return clone

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledDataset:
        clone = self.__copy__()
        memo[id(self)] = clone
        clone.__dict__.update(copy.deepcopy(self.__getstate__(), memo), _stored=self._stored)
        return clone

    @property
    def manifest(self) -> Manifest:
        return self.stored.manifest

    @property
    def schema(self) -> Schema:
        return self.stored.schema

    @property
    def fingerprint(self) -> str:
        """Identifies the content: equal for equal samples and recipe, wherever and whenever they were built."""
        return self.manifest.fingerprint

    @property
    def field_names(self) -> tuple[str, ...]:
        """The fields of a sample, in order."""
        return form.field_names(self.fields, self.schema)

    @property
    def classes(self) -> list[str]:
        """Names of the classes; label i is `classes[i]`. Empty when labels are plain integers or missing."""
        return list(self.manifest.classes or ())

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> np.ndarray:
        """int64 (len(self),): the label of every sample, mapped from disk; −1 where a sample has none."""
        column = self.column("label")
        assert isinstance(column, np.ndarray)
        return column

    @property
    def keys(self) -> TextColumn:
        """The key of every sample: its path relative to the raw source."""
        keys = self.stored.index.keys[self._start : self._start + self._count]
        assert isinstance(keys, TextColumn)
        return keys

    def lengths(self, field: str | None = None) -> np.ndarray:
        """Sizes of every sample along the axes of an array field that vary: int64 (len(self),), or (len(self), axes).

        field: by default the first of `fields` whose shape varies.
        """
        varying = [name for name in self.field_names if not self.schema[name].is_fixed]
        name = field if field is not None else next(iter(varying), None)
        if name not in varying:
            raise ValueError(f"{self.root}: expected a field whose shape varies, got {field!r}; "
                             f"choose from {', '.join(varying) or 'none: all samples have one shape'}")  # fmt: skip
        column = self.stored.index.shape_column(name)
        assert column is not None
        axes = list(self.schema[name].varying_axes)
        rows = column[self._start : self._start + self._count]
        return rows[:, axes[0]] if len(axes) == 1 else rows[:, axes]

    def to_tensors(self, device: str | torch.device) -> ResidentDataset:
        """All samples in the memory of a device, for a small dataset; a Loader gathers its batches there.

        A `transform` is applied here, once. Where shapes vary each sample takes the bytes of the largest. Raises
        NoRoomError before it reads when they do not fit.
        """
        from precompile.loading.devices.resident import to_tensors  # it knows this class

        return to_tensors(self, device)

    def column(self, name: str) -> Column:
        """A whole column (shape `()`) of this split, mapped from disk: an array, or a sequence of str."""
        columns = self.stored.index.columns
        if name not in columns:
            raise ValueError(f"{self.root}: no column {name!r}; choose from {', '.join(columns) or 'none'}")
        return columns[name][self._start : self._start + self._count]

    def __repr__(self) -> str:
        split = "" if self.split is None else f", split={self.split!r}"
        content = "not opened in this process"
        if self._stored is not None:
            content = f"{len(self)} samples of {', '.join(self.field_names)}"
        return f"CompiledDataset({str(self.root)!r}{split}): {content}"

    def __len__(self) -> int:
        if self._stored is None:
            _ = self.stored
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._sample(self.sample_number(index))

    def _sample(self, number: int) -> Any:
        if activity.page is not None:
            activity.page.dataset(str(self.root), self.manifest.generation)
            activity.page.reading(number)
        values = {name: self._value(number, name) for name in self.field_names}
        try:
            for name, transform in self.transforms.items():
                values[name] = transform(values[name])
        except Exception as error:
            error.add_note(self.describe(number))
            raise
        return self.arrange(values)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples; torch's DataLoader calls this once per batch.

        Samples of fixed shape are gathered at once and share the memory of the batch that `collate` makes of them;
        `clone()` what is kept for long.
        """
        samples = self._samples(indices)
        if purity.is_strict:
            purity.check()
        return samples

    def _samples(self, indices: Sequence[int]) -> list[Any]:
        if type(self).__getitem__ is not CompiledDataset.__getitem__:
            return [self[index] for index in indices]
        numbers = self._sample_numbers(indices)
        if not self.reads_as_stored or not len(numbers) or not self.is_gathered:
            return [self._sample(number) for number in numbers.tolist()]
        gather = getattr(self._local, "gather", None)
        if gather is None:
            gather = self._local.gather = SampleGather(self.stored, self.field_names, self.fields)
        if activity.page is not None:
            activity.page.dataset(str(self.root), self.manifest.generation)
            activity.page.reading(int(numbers[0]), len(numbers))
        samples: list[Any] = gather(numbers)
        return samples

    def _sample_numbers(self, indices: Sequence[int]) -> np.ndarray:
        """`sample_number` of each, int64 (n,)."""
        positions, count = np.asarray(indices), len(self)
        are_plain = positions.dtype == np.int64 and positions.ndim == 1 and positions.size > 0
        if are_plain and -count <= int(positions.min()) <= int(positions.max()) < count:
            return np.where(positions < 0, positions + count, positions) + self._start
        return np.array([self.sample_number(index) for index in indices], np.int64)

    @property
    def reads_as_stored(self) -> bool:
        """Whether samples are what is stored: no transform, and no subclass that makes something else of them."""
        return self.transform is None and type(self).__getitem__ is CompiledDataset.__getitem__

    @property
    def is_gathered(self) -> bool:
        """Whether several samples can be read as one batch: all have one shape."""
        specs = [self.schema[name] for name in self.field_names]
        return all(spec.is_fixed for spec in specs) and not all(spec.is_column for spec in specs)

    def collate(self, samples: Sequence[Any]) -> Any:
        """Samples -> a batch in the same form (dict, tuple or value). Give it to DataLoader as `collate_fn`.

        Equal shapes are stacked; a field whose shape varies becomes `Padded(data, lengths)`. Samples of one
        `__getitems__`, unchanged, are the batch that was gathered, without another copy.
        """
        if isinstance(samples, GatheredSamples) and (batch := samples.unchanged_batch()) is not None:
            return batch
        parts = [form.parts(self.fields, sample) for sample in samples]
        return self.arrange({name: self.collate_field(name, [part[name] for part in parts])
                             for name in self.field_names})  # fmt: skip

    def collate_field(self, name: str, values: list[Any], make: MakeArray = fresh_array) -> Any:
        """The values of one field of several samples -> its batch, in memory that `make` gives."""
        spec = self.schema[name]
        if spec.is_column and spec.dtype != TEXT:
            dtype = getattr(torch, spec.dtype)
            if all(type(value) is (float if dtype.is_floating_point else int) for value in values):
                return torch.tensor(values, dtype=dtype)  # what the user put there instead keeps its own
        return collate_values(values, self._axes_to_pad(name), make)

    @property
    def arrange(self) -> Callable[[Mapping[str, Any]], Any]:
        """Values by field name -> the form that `fields` asks for. Does not refer to this object."""
        return functools.partial(form.arrange, self.fields)

    def sample_number(self, index: int) -> int:
        """Position in this split -> row of the index. Negative positions count from the end."""
        length = len(self)
        if not isinstance(index, int | np.integer):
            raise TypeError(f"index must be an integer, got {index!r}")
        position = index + length if index < 0 else index
        if not 0 <= position < length:
            raise IndexError(f"index {index} is out of range for {length} samples")
        return int(position) + self._start

    def _value(self, number: int, name: str) -> Any:
        column = self.stored.index.columns.get(name)
        if column is not None:
            value = column[number]
            return value if isinstance(value, str) else value.item()
        array = self.stored.array(number, name)
        spec = self.schema[name]
        if spec.encoding == "raw_hwc":
            return torch.from_numpy(array.transpose(1, 2, 0).copy()).permute(2, 0, 1)
        return torch.from_numpy(array if spec.encoding == "bmp" else array.copy())

    @property
    def transforms(self) -> Mapping[str, Transform]:
        """The transforms by the field that they get."""
        return form.transforms_by_field(self.transform, self.fields, self.schema)

    def describe(self, number: int) -> str:
        """For a note of an exception: which sample a transform was given, by its number."""
        return (f"The transform was given sample {number - self._start} ({self.stored.index.keys[number]!r}) "
                f"of {self.root}")  # fmt: skip

    def _axes_to_pad(self, name: str) -> tuple[int, ...]:
        if name in self.transforms:
            return ()
        return self.schema[name].varying_axes
