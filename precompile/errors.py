"""The exceptions that users may catch. Every message says what came, what was expected and what to do.

`exit_code` is what the command line ends with when the error reaches it.
"""

from __future__ import annotations


class PrecompileError(Exception):
    """Base of all errors that precompile raises on purpose; the message is one line for a person."""

    exit_code = 1


class RecipeError(PrecompileError, ValueError):
    """A wrong option, recipe key or combination of them. Correct the call; nothing was read or written."""

    exit_code = 2


class SourceError(PrecompileError):
    """The raw data is missing, empty, or not laid out as the source expects."""


class StorageError(PrecompileError, OSError):
    """The storage failed (EIO, EACCES, ENOSPC, a file gone after it was listed). Mend it and build again."""


class NoRoomError(PrecompileError):
    """What would be written does not fit; the message has need and have. Nothing was written."""


class ForeignDirectoryError(PrecompileError):
    """The output exists and precompile did not make it, so it is left alone. Choose another output."""


class ShrinkError(PrecompileError):
    """A build would lose many samples of the current generation; `--allow-shrink` commits it all the same."""


class TooManyFailuresError(PrecompileError):
    """Inputs failed and the build was asked to stop on the first (`--on-error stop`), or every input failed."""


class BuildFailedError(PrecompileError):
    """A build ended without a commit for a reason of its own, such as a worker that could not start."""


class BusyError(PrecompileError):
    """Another build holds the output. Run again later."""

    exit_code = 75


class StoppedError(PrecompileError):
    """A build was told to stop; finished shards are kept, and the same command goes on from there."""

    exit_code = 75


class DatasetNotFoundError(PrecompileError, FileNotFoundError):
    """No compiled dataset, or no such generation of it, lies at the path."""


class FormatError(PrecompileError):
    """A file of a compiled dataset is damaged, truncated, swapped, or of a newer format."""


class NewerFormatError(FormatError):
    """The dataset was made by a newer precompile; upgrade."""


class ContentError(PrecompileError):
    """One input cannot be compiled because of what is in it. It goes to the quarantine; the build goes on.

    stage: `read`, `decode`, `transform` or `store`, the step that failed.
    """

    def __init__(self, message: str, *, stage: str = "decode") -> None:
        super().__init__(message)
        self.stage = stage


class LoaderStalled(PrecompileError, RuntimeError):
    """No batch came in time. The message has the stacks and states of all processes, and what to do."""


class WorkerDiedError(PrecompileError, RuntimeError):
    """A worker process of a loader ended before its work was done; the message says how, and why that happens."""


class ImpureWorkerError(PrecompileError):
    """A worker process that should only read memory imported a decoder or started threads; the message names it."""
