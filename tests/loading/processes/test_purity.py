"""A strict process: what it may not import, and which threads are none of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from precompile.loading.processes.purity import DECODERS

REPOSITORY = Path(__file__).resolve().parents[3]
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
IN_PROC = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for threads in /proc")

PREAMBLE = """
import ctypes, importlib, importlib.util, os, sys, threading
from precompile.errors import ImpureWorkerError
from precompile.loading.processes import purity

def start_native_thread():
    libc = ctypes.CDLL(None)
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)

def outcome(call, *arguments):
    try:
        call(*arguments)
        print("fine")
    except Exception as error:
        print(f"{type(error).__name__}: {error}")

def in_child(work):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        work()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
"""


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    """A folder with an empty module for each decoder, and `helper`, which imports one."""
    folder = tmp_path / "site-packages"
    for name in DECODERS:
        path = folder / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (folder / "torchvision" / "__init__.py").write_text("")
    (folder / "helper.py").write_text("import sys\nimport cv2\n")
    return folder


def lines(code: str, libraries: Path) -> list[str]:
    """What code prints, run as a script beside `libraries`."""
    script = libraries.parent / "script.py"
    script.write_text(PREAMBLE + code)
    path = os.pathsep.join([str(libraries), str(REPOSITORY)])
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", ["cv2", "PIL", "torchaudio", "soundfile", "torchvision.io", "torchcodec", "librosa"])
def test_the_list_has(name: str) -> None:
    assert name in DECODERS


def test_every_decoder_is_refused(libraries: Path) -> None:
    code = """
purity.forbid_decoders()
for name in sorted(purity.DECODERS):
    outcome(importlib.import_module, name)
"""
    for name, line in zip(sorted(DECODERS), lines(code, libraries), strict=True):
        assert re.match(
            rf"ImpureWorkerError: strict worker MainProcess \(pid \d+\) imports {re.escape(name)} at ", line
        )
        assert "precompile.build" in line
        assert "in the parent only" in line
        assert "strict=False" in line


def test_the_error_names_who_imports_and_who_asked(libraries: Path) -> None:
    code = "purity.forbid_decoders()\ndef use():\n    import helper  # HERE\noutcome(use)"
    place = 1 + (PREAMBLE + code)[: (PREAMBLE + code).index("# HERE")].count("\n")
    (line,) = lines(code, libraries)
    assert (
        f"imports cv2 at {libraries / 'helper.py'}:2, asked for at {libraries.parent / 'script.py'}:{place}, " in line
    )


def test_optional_imports_do_not_hide_it(libraries: Path) -> None:
    code = """
def optional(error):
    try:
        import PIL
    except error:
        pass
purity.forbid_decoders()
outcome(purity.check)
outcome(optional, ImportError)
purity._violation = None
outcome(optional, Exception)
outcome(purity.check)
outcome(purity.check)
"""
    before, uncaught, caught, *after = lines(code, libraries)
    assert (before, caught) == ("fine", "fine")
    assert uncaught.startswith("ImpureWorkerError")
    assert len(after) == 2
    assert all("imports PIL at" in line for line in after)


def test_other_imports_and_questions_are_fine(libraries: Path) -> None:
    (libraries / "av.py").unlink()
    code = """
purity.forbid_decoders()
print(importlib.util.find_spec("PIL").origin)
print(importlib.util.find_spec("av"))
outcome(importlib.import_module, "av")
outcome(importlib.import_module, "torchvision")
outcome(purity.check)
"""
    missing = "ModuleNotFoundError: No module named 'av'"
    assert lines(code, libraries) == [str(libraries / "PIL.py"), "None", missing, "fine", "fine"]


def test_a_decoder_that_is_imported_is_refused(libraries: Path) -> None:
    code = "import soundfile as sf\noutcome(purity.forbid_decoders)\nprint(purity.is_strict)"
    message, is_strict = lines(code, libraries)
    assert re.match(
        r"ImpureWorkerError: .* has soundfile imported already \(by __main__\).*Most likely it was impo", message
    )
    assert is_strict == "False"


@FORKS
def test_a_decoder_of_the_parent_is_refused(libraries: Path) -> None:
    (message,) = lines("import soundfile\nin_child(lambda: outcome(purity.forbid_decoders))", libraries)
    assert "Most likely the parent had imported it before it forked" in message


@FORKS
def test_a_child_of_a_strict_process_has_promised_nothing(libraries: Path) -> None:
    code = """
def child():
    print(purity.is_strict)
    outcome(purity.check)
    outcome(importlib.import_module, "cv2")
def strict_child():
    purity.forbid_decoders()
    outcome(importlib.import_module, "cv2")
purity.forbid_decoders()
outcome(importlib.import_module, "cv2")
in_child(child)
in_child(strict_child)
print(purity.is_strict)
"""
    parent, *child, strict_child, is_strict = lines(code, libraries)
    assert child == ["False", "fine", "fine"]
    assert parent.startswith("ImpureWorkerError")
    assert strict_child.startswith("ImpureWorkerError")
    assert is_strict == "True"


@IN_PROC
def test_a_thread_of_a_library_is_found(libraries: Path) -> None:
    code = """
start_native_thread()  # was there before
purity.forbid_decoders()
outcome(purity.check)
start_native_thread()
purity.forbid_decoders()
outcome(purity.check)
outcome(purity.check_threads)
"""
    before, *after = lines(code, libraries)
    assert before == "fine"
    assert len(after) == 2
    for line in after:
        assert re.search(r"ImpureWorkerError: .* has threads that compiled libraries started \(1 named python", line)


def test_threads_of_python_are_fine(libraries: Path) -> None:
    code = """
purity.forbid_decoders()
for _ in range(300):
    threading.Thread(target=threading.get_ident).start()
    purity.check()
stop = threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
outcome(purity.check)
stop.set()
thread.join()
outcome(purity.check)
"""
    assert lines(code, libraries) == ["fine", "fine"]


def test_threads_do_not_matter_to_others(libraries: Path) -> None:
    code = "start_native_thread()\noutcome(purity.check_threads)\nprint(purity.is_strict)"
    assert lines(code, libraries) == ["fine", "False"]
