"""Training imports numpy, torch and the standard library; nothing that decodes, builds or prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
NEVER = {
    "cv2",
    "PIL",
    "torchaudio",
    "torchvision",
    "soundfile",
    "lmdb",
    "pydantic",
    "click",
    "tqdm",
    "xxhash",
    "psutil",
    "filelock",
}
ABOVE = ("precompile.pipeline", "precompile.cli", "precompile.advise", "precompile.report")

BASELINE = "import numpy, numpy.random, torch, torch.utils.data"
READ = """
from precompile import CompiledDataset, Loader
dataset = CompiledDataset(sys.argv[1])
dataset[0], dataset.targets[0], dataset.keys[0], dataset.classes, dataset.collate([dataset[0], dataset[1]])
for _ in Loader(dataset, 4, shuffle=True): pass
"""
# What a worker has imported comes back as its batches.
READ_IN_WORKERS = """
import torch.utils.data
from precompile import CompiledDataset
def names_of_modules(samples):
    return dataset.collate(samples) and sorted(sys.modules)
dataset = CompiledDataset(sys.argv[1])
options = {"num_workers": 2, "multiprocessing_context": "fork", "collate_fn": names_of_modules}
loader = torch.utils.data.DataLoader(dataset, 4, **options)
seen = {name for names in loader for name in names}
"""


def modules_after(code: str, *arguments: Path, names: str = "sys.modules") -> set[str]:
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*{names})", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def top(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.fixture(scope="module")
def baseline() -> set[str]:
    return modules_after(BASELINE)


def assert_only_reads(modules: set[str], baseline: set[str]) -> None:
    allowed = top(baseline) | sys.stdlib_module_names | {"precompile"}
    assert "torch" in modules
    assert top(modules) - allowed == set()
    assert top(modules) & NEVER - top(baseline) == set()
    assert [name for name in modules if name.startswith(ABOVE)] == []


@pytest.mark.parametrize("compiled", ["compiled_photos", "compiled_clips"])
def test_training_imports_no_decoder(baseline: set[str], compiled: str, request: pytest.FixtureRequest) -> None:
    assert_only_reads(modules_after(READ, request.getfixturevalue(compiled)), baseline)


def test_a_worker_imports_no_decoder(baseline: set[str], compiled_photos: Path) -> None:
    assert_only_reads(modules_after(READ_IN_WORKERS, compiled_photos, names="seen"), baseline)


def test_the_package_alone_is_lazy() -> None:
    modules = modules_after("import precompile; precompile.PrecompileError, dir(precompile)")
    assert "precompile.errors" in modules
    assert top(modules) & {"torch", "numpy", *NEVER} == set()


def test_building_does_not_import_torch() -> None:
    modules = modules_after("import precompile.pipeline.build")
    assert "precompile.pipeline.plan" in modules
    assert top(modules) & {"torch", "torchaudio", "torchvision"} == set()


@pytest.mark.parametrize("name", ["CompiledDataset", "Loader", "Padded", "build", "Summary", "doctor"])
def test_every_name_of_the_package_is_there(name: str) -> None:
    import precompile

    assert name in precompile.__all__
    assert name in dir(precompile)
    assert getattr(precompile, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    import precompile

    with pytest.raises(AttributeError, match="module 'precompile' has no attribute 'CompileDataset'"):
        _ = precompile.CompileDataset
