"""Forks builds off one process that has imported everything, so that a build costs no seconds of imports.

Run as a script, it reads one line of JSON for each build to start, and answers with its process id; or the id of one
to wait for, and answers with its exit code.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn

PRELOADED = (
    "precompile.cli.build", "precompile.cli.info", "precompile.cli.prune", "precompile.pipeline.engines.exact",
    "precompile.pipeline.executors.local", "precompile.pipeline.sources.image_folder", "precompile.pipeline.verify",
)  # fmt: skip


def run(request: dict[str, Any], ready: int) -> NoReturn:
    """Be the build. It leads a session, and so a process group, of its own; `ready` is closed when it does."""
    import fault

    from precompile.cli.main import main

    os.setsid()
    for descriptor, name in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    os.close(ready)
    os.environ.update(request["environment"])
    sys.path[:0] = request["path"]  # which workers get
    sys.argv = ["precompile", *request["arguments"]]
    code = 1
    try:
        fault.install()
        main()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def start(request: dict[str, Any]) -> int:
    """The process id of a build that leads its group."""
    seen, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        run(request, ready)
    os.close(ready)
    os.read(seen, 1)
    os.close(seen)
    return pid


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def serve() -> None:
    for name in PRELOADED:
        __import__(name)
    for line in sys.stdin:
        request = json.loads(line)
        print(exit_code(request) if isinstance(request, int) else start(request), flush=True)


if __name__ == "__main__":
    serve()
