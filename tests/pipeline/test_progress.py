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
    assert (first["level"], first["event"], first["task"]) == ("info", "shard finished", 0)
    assert (second["level"], second["message"]) == ("error", "oh")


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
