"""Which part of an epoch this process reads, among the processes of a training run."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch.distributed

REMAINDERS = ("pad", "drop")


def checked_integer(name: str, value: Any, at_least: int) -> int:
    """`value` as an int. Raises ValueError when it is no integer (a bool is none) or too small."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < at_least:
        raise ValueError(f"{name} must be an integer of at least {at_least}, got {name}={value!r}")
    return number


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of `world_size`."""

    number: int
    world_size: int
    remainder: str

    def share(self, total: int) -> int:
        """How many of `total` each rank reads, equal on all: rounded up for `pad`, down for `drop`."""
        return -(-total // self.world_size) if self.remainder == "pad" else total // self.world_size


@dataclass(frozen=True, slots=True)
class Ranks:
    """How an epoch is split. Raises ValueError for a rank outside of 0 … world_size - 1, or an unknown remainder.

    rank, world_size: both None are those of torch.distributed when it is initialised, else 0 and 1.
    remainder: what does not divide evenly is filled up with repeats (`pad`) or left out (`drop`).
    """

    rank: int | None = None
    world_size: int | None = None
    remainder: str = "pad"

    def __post_init__(self) -> None:
        if self.remainder not in REMAINDERS:
            raise ValueError(f"remainder must be one of {', '.join(REMAINDERS)}, got remainder={self.remainder!r}")
        if (self.rank is None) != (self.world_size is None):
            raise ValueError(
                f"rank and world_size go together, got rank={self.rank!r} and world_size={self.world_size!r}"
            )
        if self.rank is not None:
            world_size = checked_integer("world_size", self.world_size, 1)
            if checked_integer("rank", self.rank, 0) >= world_size:
                raise ValueError(f"rank must be below world_size, got rank={self.rank} and world_size={world_size}")

    def current(self) -> Rank:
        """The rank of this process now: torch.distributed may have been initialised since the last call."""
        if self.rank is not None and self.world_size is not None:
            return Rank(int(self.rank), int(self.world_size), self.remainder)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return Rank(torch.distributed.get_rank(), torch.distributed.get_world_size(), self.remainder)
        return Rank(0, 1, self.remainder)
