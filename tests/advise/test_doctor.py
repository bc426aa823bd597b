"""Each check on made-up facts, and once the whole on this machine."""

from __future__ import annotations

import json
import multiprocessing
import re
import resource
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from precompile.advise import doctor as checks
from precompile.advise.doctor import Check, as_json, doctor, sample_bytes
from precompile.errors import DatasetNotFoundError, FormatError, RecipeError
from precompile.machine import CpuLimits, MemoryLimits

GIB = 2**30


def field(name: str, dtype: str, shape: list[int | None]) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape, "encoding": "raw", "unit": ""}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """The manifest of 3 x 224 x 224 images with a label and a spectrogram of varying length."""
    schema = [
        field("image", "uint8", [3, 224, 224]),
        field("embedding", "float32", [16]),
        field("spectrogram", "float16", [80, None]),
        field("label", "int64", []),
    ]
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": schema}))
    return tmp_path


def test_an_unknown_status_is_refused() -> None:
    with pytest.raises(ValueError, match="status must be one of ok, warn, fail, got status='bad'"):
        Check("CPUs", "bad", "")  # type: ignore[arg-type]


def test_a_check_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Check("CPUs", "ok", "4").status = "fail"  # type: ignore[misc]


def test_as_json_has_one_object_per_check() -> None:
    result = as_json([Check("a", "ok", "1"), Check("b", "fail", "2", "do this")])
    assert json.loads(json.dumps(result)) == {
        "checks": [
            {"name": "a", "status": "ok", "value": "1", "advice": ""},
            {"name": "b", "status": "fail", "value": "2", "advice": "do this"},
        ]
    }


# datasets


def test_sample_bytes_counts_the_array_fields_of_known_shape(dataset: Path) -> None:
    assert sample_bytes(dataset) == 3 * 224 * 224 + 4 * 16


@pytest.mark.parametrize("name", ["missing", "file"])
def test_sample_bytes_without_a_manifest(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetNotFoundError, match=re.escape(f"{tmp_path / name}: no compiled dataset")):
        sample_bytes(tmp_path / name)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"schema": 3}', '{"schema": [{"name": "image"}]}'])
def test_sample_bytes_of_a_damaged_manifest_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(FormatError, match=re.escape(f"{tmp_path / 'manifest.json'}: not a manifest")):
        sample_bytes(tmp_path)


# single checks


def test_cpus() -> None:
    assert checks.check_cpus(CpuLimits(8, 8, None, None, 8)) == Check("CPUs", "ok", "8 usable of 8 (affinity 8)")
    check = checks.check_cpus(CpuLimits(64, 32, 2.5, 4, 2))
    assert (check.status, check.value) == ("warn", "2 usable of 64 (affinity 32, cgroup quota 2.5, Slurm 4)")
    assert "to 2 yourself" in check.advice


def test_memory() -> None:
    roomy = checks.check_memory(MemoryLimits(64 * GIB, None, None, 48 * GIB))
    assert roomy == Check("memory", "ok", "48.0 GiB available of 64.0 GiB, container limit none")
    tight = checks.check_memory(MemoryLimits(64 * GIB, 2 * GIB, 2 * GIB - 2**28, 2**28))
    assert (tight.status, tight.value) == ("warn", "256 MiB available of 64.0 GiB, container limit 2.0 GiB")
    assert "killed" in tight.advice


@pytest.mark.parametrize(
    ("free", "needed", "status"),
    [
        (64 * 2**20, None, "warn"),
        (0, None, "warn"),
        (8 * GIB, None, "ok"),
        (64 * 2**20, 64 * 2**20, "ok"),
        (64 * 2**20, 64 * 2**20 + 1, "fail"),
        (0, 0, "ok"),
    ],
)
def test_shared_memory(free: int, needed: int | None, status: str) -> None:
    check = checks.check_shared_memory(free, needed)
    assert check.status == status
    assert ("--shm-size" in check.advice) is (status != "ok")


@pytest.mark.parametrize(
    ("environ", "torch_threads", "workers", "status", "product", "advice"),
    [
        ({}, 1, 4, "ok", "4 x 1", ""),
        ({}, 8, None, "ok", "1 x 8", ""),
        ({}, 8, 0, "ok", "1 x 8", ""),
        ({}, 64, None, "warn", "1 x 64", "OMP_NUM_THREADS=8"),
        ({}, 8, 4, "warn", "4 x 8", "OMP_NUM_THREADS=2"),
        ({}, 1, 9, "warn", "9 x 1", "at most 8 workers"),
        ({"OMP_NUM_THREADS": "1"}, 1, 8, "ok", "8 x 1", ""),
        ({"OPENBLAS_NUM_THREADS": "16"}, 1, 2, "warn", "2 x 16", "OMP_NUM_THREADS=4"),
        ({"MKL_NUM_THREADS": "4,2"}, 1, 2, "ok", "2 x 4", ""),
        ({"OMP_NUM_THREADS": "many"}, 1, 2, "ok", "2 x 1", ""),
        ({}, 0, 2, "ok", "2 x 1", ""),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, 1, 1, "warn", "1 x 1", "unset OMP_WAIT_POLICY"),
        ({"OMP_WAIT_POLICY": "passive"}, 1, 1, "ok", "1 x 1", ""),
    ],
)
def test_threads_on_eight_cpus(
    environ: dict[str, str], torch_threads: int, workers: int | None, status: str, product: str, advice: str
) -> None:
    check = checks.check_threads(environ, torch_threads, workers, 8)
    assert check.status == status
    assert check.value.startswith(f"{product} threads on 8 CPUs")
    assert all(f"{name}={value}" in check.value for name, value in environ.items())
    assert advice in check.advice


def test_start_method() -> None:
    assert checks.check_start_method("forkserver") == Check("start method", "ok", "forkserver")
    assert checks.check_start_method("fork").status == "warn"
    assert checks.check_start_method(None).value == multiprocessing.get_all_start_methods()[0]


@pytest.mark.parametrize(
    ("soft", "hard", "status", "value"),
    [
        (1024, 524288, "warn", "1024 of 524288"),
        (4096, 4096, "ok", "4096 of 4096"),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, "ok", "unlimited of unlimited"),
    ],
)
def test_open_files(soft: int, hard: int, status: str, value: str) -> None:
    check = checks.check_open_files(soft, hard)
    assert (check.status, check.value) == (status, value)


@pytest.mark.parametrize(
    ("text", "status", "value"), [("65530\n", "ok", "65530"), ("100\n", "warn", "100"), (None, "ok", "unknown")]
)
def test_max_map_count(tmp_path: Path, text: str | None, status: str, value: str) -> None:
    if text is not None:
        file = tmp_path / "proc/sys/vm/max_map_count"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    check = checks.check_max_map_count(root=tmp_path)
    assert (check.status, check.value) == (status, value)


@pytest.mark.parametrize(("kind", "status"), [("ext4", "ok"), ("tmpfs", "ok"), ("nfs4", "warn"), ("lustre", "warn")])
def test_dataset_on_a_network_is_to_be_staged(tmp_path: Path, kind: str, status: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(f"27 1 254:0 / / rw - {kind} source rw\n")
    check = checks.check_filesystem(tmp_path, root=tmp_path)
    assert check.status == status
    assert check.value.startswith(f"{kind}, ")
    assert ("copy the dataset" in check.advice) is (status == "warn")


def test_an_installed_package_shows_its_version() -> None:
    check = checks.check_package("numpy")
    assert check.status == "ok"
    assert re.fullmatch(r"\d+\.\d+.* \(numpy\)", check.value)


def test_a_package_that_is_not_installed_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PACKAGES", {"opencv": ("no-such-distribution", "nor-this-one")})
    assert checks.check_package("opencv") == Check(
        "opencv", "fail", "not installed", "pip install no-such-distribution"
    )


def test_any_build_of_a_package_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PACKAGES", {"opencv": ("no-such-distribution", "numpy")})
    assert checks.check_package("opencv").status == "ok"


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"torch": "2.8.0+cpu", "torchaudio": "2.8.0+cpu"}, "ok"),
        ({"torch": "2.8.0+cu128", "torchaudio": "2.8.0+cu128"}, "ok"),
        ({"torch": "2.8.0", "torchaudio": "2.8.0"}, "ok"),
        ({"torch": "2.8.0+cpu", "torchaudio": "2.8.0"}, "fail"),
        ({"torch": "2.8.0+cpu", "torchaudio": "2.8.0+cu128"}, "fail"),
        ({"torch": "2.8.0", "error": "OSError: libcudart.so.13: cannot open shared object file"}, "fail"),
        ({"error": "RuntimeError: Numpy is not available"}, "fail"),
    ],
)
def test_torch_family(facts: dict[str, str], status: str) -> None:
    check = checks.check_torch_family(facts)
    assert check.status == status
    assert all(fact in check.value for fact in facts.values())
    assert ("one index" in check.advice) is (status == "fail")


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    """Puts modules of these sources in front of the installed ones, for new processes."""
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(folder))


TORCH = "__version__ = '9.0+cpu'\ndef get_num_threads(): return 3\ndef from_numpy(array): return array\n"
NUMPY = "def zeros(count): return [0] * count\n"


@pytest.mark.parametrize(
    ("torchaudio", "error"),
    [
        ("raise OSError('libcudart.so.13: cannot open')", "OSError: libcudart.so.13: cannot open"),
        ("import os; os._exit(3)", "exit status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit status -9"),
    ],
)
def test_a_torchaudio_that_fails_or_crashes_on_import_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torchaudio: str, error: str
) -> None:
    stand_in(tmp_path, monkeypatch, torch=TORCH, numpy=NUMPY, torchaudio=torchaudio)
    assert checks.torch_facts() == {"torch": "9.0+cpu", "threads": "3", "error": error}


def test_a_torch_that_prints_on_import_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = f"print('hello')\n{TORCH}"
    stand_in(tmp_path, monkeypatch, torch=noisy, numpy=NUMPY, torchaudio="__version__ = '9.1'")
    assert checks.torch_facts() == {"torch": "9.0+cpu", "threads": "3", "torchaudio": "9.1"}


def test_an_import_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, torch="import threading; threading.Event().wait()", numpy=NUMPY)
    assert checks.torch_facts(timeout_seconds=0.5) == {"error": "no answer within 0.5 seconds"}


# the whole


def test_doctor_on_this_machine(dataset: Path) -> None:
    found = {check.name: check for check in doctor(dataset=dataset, batch_size=2, workers=1)}
    assert set(found) == {
        "CPUs", "memory", "/dev/shm", "threads", "start method", "open files", "memory maps", "dataset storage",
        "torch", "torchaudio", "numpy", "pillow", "opencv", "soundfile", "lmdb", "torch, numpy, torchaudio",
    }  # fmt: skip
    assert all((check.advice == "") is (check.status == "ok") for check in found.values())
    assert "the batches of all workers need 1 MiB or more" in found["/dev/shm"].value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got batch_size=0"),
        ({"workers": -1}, "workers must be at least 0, got workers=-1"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        doctor(**options)  # type: ignore[arg-type]


def test_doctor_of_a_missing_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="no compiled dataset"):
        doctor(dataset=tmp_path / "missing")
