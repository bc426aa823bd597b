"""A bar on a terminal, plain lines in logs, JSON lines in a log file."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from precompile.errors import BusyError, StoppedError
from precompile.pipeline import progress as module
from precompile.pipeline.progress import Progress


def test_plain_lines_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr(module, "_LINE_EVERY_SECONDS", 0.0)
    with Progress(10) as progress:
        progress.finish(4)
        progress.running(2)
        progress.say("hello")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["4 of 10 inputs", "6 of 10 inputs", "hello"]


def test_quiet_says_nothing(capsys, monkeypatch):
    monkeypatch.setattr(module, "_LINE_EVERY_SECONDS", 0.0)
    with Progress(10, quiet=True) as progress:
        progress.finish(10)
        progress.say("hello")
    assert capsys.readouterr() == ("", "")


def test_log_file_lines_are_json_and_errors_are_in_it(tmp_path):
    log = str(tmp_path / "build.log")
    progress = Progress(3, quiet=True, log_file=log)
    progress.event("info", "shard finished", task=0)
    progress.__exit__(ValueError, ValueError("oh"), None)
    first, second = (json.loads(line) for line in Path(log).read_text().splitlines())
    assert (first["level"], first["event"], first["task"], first["sample"]) == ("info", "shard finished", 0, None)
    assert (second["level"], second["event"], second["message"]) == ("error", "failed", "oh")


@pytest.mark.parametrize(
    ("error", "event"),
    [(StoppedError("later"), "stopped"), (BusyError("held"), "busy"), (KeyboardInterrupt(), "stopped")],
)
def test_what_ends_with_run_again_is_a_warning_in_the_log(tmp_path, error, event):
    log = tmp_path / "build.log"
    with pytest.raises(type(error)), Progress(3, quiet=True, log_file=log):
        raise error
    line = json.loads(log.read_text())
    assert (line["level"], line["event"]) == ("warning", event)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_build_outlives_its_log(capsys):
    with Progress(3, log_file="/dev/full") as progress:
        progress.event("info", "one")
        progress.event("info", "two")
    assert capsys.readouterr().err == "cannot write the log file: No space left on device; going on without it\n"


def test_bar_counts_inputs_on_a_terminal():
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    code = """
from precompile.pipeline.progress import Progress
with Progress(8) as progress:
    progress.running(3)
    progress.finish(8)
    progress.say("above")
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=slave) as process:
        os.close(slave)
        text = b""
        while True:
            try:
                block = os.read(master, 4096)
            except OSError:  # the terminal is gone with its last user
                break
            if not block:
                break
            text += block
    os.close(master)
    assert process.returncode == 0
    assert b"8/8" in text
    assert b"above" in text
