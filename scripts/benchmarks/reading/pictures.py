"""Cases on pictures of one size: Loader, DataLoader and a busy consumer against plain copies of the same rows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from precompile import CenterCrop, CompiledDataset
from precompile.format.schema import FieldSpec
from reading import references, runs, sets
from reading.busy import busy, busy_alone
from reading.comparison import Comparison, Comparisons, Run
from reading.question import CannotMeasure, Question
from reading.settings import Settings

MEMORY = Path("/dev/shm")
SIDE, STORED_SIDE, SMALL_SIDE = 224, 256, 32
BUSY_MILLISECONDS = 4
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Pictures:
    """Datasets and references in a folder, written when they are first asked for."""

    folder: Path
    count: int
    side: int
    batch_size: int

    def dataset(self, store: str, *, side: int | None = None, num_shards: int = sets.SHARDS) -> CompiledDataset:
        """uint8 (3, side, side); the side of the pictures unless another is given."""
        side = side or self.side
        root = self.folder / f"{store}-{side}-{num_shards}"
        if root.exists():
            return CompiledDataset(root, fields="image")
        return sets.write(root, FieldSpec("image", "uint8", (3, side, side)), self.count, store=store,
                          num_shards=num_shards)  # fmt: skip

    def loader(self, store: str, **options: object) -> Run:
        return runs.loader(self.dataset(store), self.batch_size, **options)

    def take(self, threads: int = 1) -> Run:
        """The reference: rows in a map of a plain file, in the same folder as the datasets."""
        rows = sets.plain_copy(self.dataset("flat"), self.folder / "rows").reshape(self.count, -1)
        return references.take(rows, self.batch_size, threads=threads)


def whole(case: str, store: str, at_least: float, *, threads: int = 1, where: str = "") -> Comparison:
    title = f"Loader, {store}{where}, {threads} thread{'s' * (threads > 1)} / numpy.take"
    return Comparison(
        Question(case, title, at_least), lambda data: (data.loader(store, threads=threads), data.take(threads))
    )


def crop() -> Comparison:
    def made(data: Pictures) -> tuple[Run, Run]:
        stored = data.dataset("flat", side=STORED_SIDE)
        return runs.loader(stored, data.batch_size, windows=CenterCrop(SIDE)), data.loader("flat")

    title = f"Loader, center crop {SIDE} of {STORED_SIDE} / Loader of {SIDE}"
    return Comparison(Question("center-crop", title, at_least=0.75), made)


def stock_dataloader() -> Comparison:
    title = "DataLoader, num_workers=0 / Loader, prefetch=0"
    return Comparison(
        Question("dataloader", title, at_least=0.85),
        lambda data: (_dataloader_alone(data.dataset("flat"), data.batch_size), data.loader("flat", prefetch=0)),
    )


def _dataloader_alone(dataset: CompiledDataset, batch_size: int) -> Run:
    return runs.dataloader(dataset, batch_size, collate_fn=dataset.collate)


def workers() -> Comparison:
    title = f"Loader, {WORKERS} workers, identity in Python / numpy.take"

    def made(data: Pictures) -> tuple[Run, Run]:
        dataset = runs.with_identity(data.dataset("flat"))
        return runs.loader(dataset, data.batch_size, workers=WORKERS), data.take()

    return Comparison(Question("workers-224", title, at_least=0.9), made)


def small_workers() -> Comparison:
    title = f"Loader / DataLoader, {WORKERS} workers, identity, {SMALL_SIDE}x{SMALL_SIDE}"

    def made(data: Pictures) -> tuple[Run, Run]:
        dataset = runs.repeated(runs.with_identity(data.dataset("flat")), 4)
        stock = runs.dataloader(dataset, data.batch_size, num_workers=WORKERS, persistent_workers=True)
        return runs.loader(dataset, data.batch_size, workers=WORKERS), stock

    return Comparison(Question("workers-32", title, at_least=10), made)


def watched() -> Comparison:
    title = f"watch(Loader), flat, {SMALL_SIDE}x{SMALL_SIDE} / Loader"

    def made(data: Pictures) -> tuple[Run, Run]:
        dataset = runs.repeated(data.dataset("flat"), 20)
        return (
            runs.watched(dataset, data.batch_size, is_watched=True),
            runs.watched(dataset, data.batch_size, is_watched=False),
        )

    return Comparison(Question("watch", title, at_least=0.99), made)


def busy_consumer(store: str) -> list[Comparison]:
    """The second row tells why the first is not met where a gather takes longer than the consumer."""

    def against_itself(data: Pictures) -> tuple[Run, Run]:
        each = busy(BUSY_MILLISECONDS)
        return data.loader(store, each=each), busy_alone(each, data.count // data.batch_size, data.batch_size)

    def against_take(data: Pictures) -> tuple[Run, Run]:
        return data.loader(store, each=busy(BUSY_MILLISECONDS)), data.take()

    case, title = f"busy-{store}", f"busy {BUSY_MILLISECONDS} ms a batch, {store}"
    return [
        Comparison(Question(case, f"{title}: time / time without a Loader", at_most=1.1), against_itself),
        Comparison(Question(case, f"{title} / numpy.take, not busy"), against_take),
    ]


def cut(num_shards: int, open_files: int) -> Comparison:
    title = f"Loader, flat, {num_shards} shards, {open_files} open files / numpy.take"
    return Comparison(
        Question("shards", title),
        lambda data: (runs.loader(data.dataset("flat", num_shards=num_shards), data.batch_size), data.take()),
    )


def on_disk(settings: Settings) -> Sequence[Comparison]:
    return [
        whole("flat-224", "flat", 0.92),
        whole("flat-224-2-threads", "flat", 0.85, threads=2),
        whole("lmdb-224", "lmdb", 0.9),
        crop(),
        stock_dataloader(),
        workers(),
        *busy_consumer("flat"),
        *busy_consumer("lmdb"),
        *(cut(number, settings.open_files) for number in settings.shards),
    ]


def in_memory(settings: Settings) -> Sequence[Comparison]:
    return [
        whole("shm-flat-224", "flat", 0.8, where=f" on {MEMORY}"),
        whole("shm-flat-224-2-threads", "flat", 0.8, where=f" on {MEMORY}", threads=2),
        whole("shm-lmdb-224", "lmdb", 0.8, where=f" on {MEMORY}"),
    ]


def small(settings: Settings) -> Sequence[Comparison]:
    return [
        whole("flat-32", "flat", 0.85, where=f", {SMALL_SIDE}x{SMALL_SIDE}"),
        whole("lmdb-32", "lmdb", 0.8, where=f", {SMALL_SIDE}x{SMALL_SIDE}"),
        small_workers(),
        watched(),
    ]


@contextmanager
def disk_data(folder: Path, settings: Settings) -> Iterator[Pictures]:
    yield Pictures(folder, settings.pictures, SIDE, settings.batch_size)


@contextmanager
def memory_data(folder: Path, settings: Settings) -> Iterator[Pictures]:
    need = 3 * settings.pictures * 3 * SIDE**2
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < 1.1 * need:
        raise CannotMeasure(f"{MEMORY} must be there and have {1.1 * need / 1e9:.1f} GB free")
    with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
        yield Pictures(Path(memory), settings.pictures, SIDE, settings.batch_size)


@contextmanager
def small_data(folder: Path, settings: Settings) -> Iterator[Pictures]:
    yield Pictures(folder, settings.small_pictures, SMALL_SIDE, settings.batch_size)


CASES = (Comparisons(on_disk, disk_data), Comparisons(in_memory, memory_data), Comparisons(small, small_data))
