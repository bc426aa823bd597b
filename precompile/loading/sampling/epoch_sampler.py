"""What all samplers share: epochs one after another, and going on in the middle of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import torch.utils.data

from precompile.loading.sampling.orders import Batches, Epoch, Order
from precompile.loading.sampling.ranks import Rank, Ranks, checked_integer

Item = TypeVar("Item", int, list[int])


class EpochSampler(torch.utils.data.Sampler[Item], Generic[Item]):
    """A sampler whose epochs are functions of (seed, epoch), for DataLoader and for Loader.

    Each iteration is the next epoch; `set_epoch` chooses one. `len` is what the next iteration gives: less than an
    epoch after `load_state_dict`. Items are positions, or batches of positions.
    """

    def __init__(self, count: int, seed: int, ranks: Ranks) -> None:
        self.count = count
        self.seed = checked_integer("seed", seed, 0)
        self.ranks = ranks
        self._next, self._start = 0, 0
        self._restored: Mapping[str, Any] | None = None
        self._current: Epoch | None = None
        self._drawn = 0

    def __len__(self) -> int:
        return self._length(self._next, self._start, self.ranks.current())

    def __iter__(self) -> Iterator[Item]:
        epoch = self.begin()  # with the first item: a DataLoader with workers makes an iterator that it never uses
        for item in self._items(epoch.order):
            if self._current is epoch:
                self._drawn += 1
            yield item

    def begin(self) -> Epoch:
        """What the next iteration reads; moves the sampler on to the epoch after it."""
        rank = self.ranks.current()
        if self._restored is not None:
            self._check_fits(self._restored, rank)
        order = self._order(self._next, self._start, rank)
        self._current = Epoch(self._next, order, self._start, rank.world_size)
        self._drawn = 0
        self._move_to(self._next + 1)
        return self._current

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch: from its beginning, or where `load_state_dict` just put it."""
        epoch = checked_integer("epoch", epoch, 0)
        if epoch != self._next:
            self._move_to(epoch)
        self._current = None

    def state(self, epoch: Epoch, consumed: int) -> dict[str, Any]:
        """The state after `consumed` items of what `begin` returned; values for JSON. Changes nothing.

        Raises ValueError when there are not so many.
        """
        consumed = checked_integer("consumed", consumed, 0)
        if consumed > len(epoch.order):
            raise ValueError(f"consumed must be at most {len(epoch.order)}, the length of the epoch, got {consumed=}")
        rank = Rank(0, epoch.world_size, self.ranks.remainder)
        return self._state(epoch.number, self._advanced(epoch.start, consumed, epoch.world_size), rank)

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The state of the epoch in progress, the last that began; values for JSON, and the same on all ranks.

        consumed: how many items of this iteration training has used; None is as many as were drawn. A DataLoader with
        workers draws ahead of training, so give it the number. Raises ValueError when there were not so many.
        """
        if self._current is not None:
            return self.state(self._current, self._drawn if consumed is None else consumed)
        if consumed:
            raise ValueError(f"no epoch has begun, so consumed must be 0 or None, got {consumed=}")
        return self._state(self._next, self._start, self.ranks.current())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration gives what is left of that epoch: nothing, when the state is of its end.

        Raises ValueError, which names what differs, when the state is of another sampler, seed, dataset, ….
        """
        rank = self.ranks.current()
        self._check_fits(state, rank)
        epoch, consumed = (checked_integer(name, state[name], 0) for name in ("epoch", "consumed"))
        if consumed > (most := self._furthest(epoch, rank)):
            raise ValueError(f"consumed must be at most {most}, the length of the epoch, got {consumed=} in the state")
        self._move_to(epoch, consumed)
        self._restored = dict(state)
        self._current = None

    def _move_to(self, epoch: int, start: int = 0) -> None:
        self._next, self._start, self._restored = epoch, start, None

    def _state(self, epoch: int, consumed: int, rank: Rank) -> dict[str, Any]:
        return {**self._full_identity(rank), "epoch": epoch, "consumed": consumed}

    def _full_identity(self, rank: Rank) -> dict[str, Any]:
        return {"sampler": type(self).__name__, "seed": self.seed, "count": self.count, **self._identity(rank)}

    def _check_fits(self, state: Any, rank: Rank) -> None:
        if not isinstance(state, Mapping):
            raise ValueError(f"the state must be a dict that state_dict gave, got {type(state).__name__}")
        here: dict[str, Any] = self._full_identity(rank)
        lacking = {*here, "epoch", "consumed"} - set(state)
        if state.get("sampler") == here["sampler"] and lacking:
            raise ValueError(f"the state lacks {', '.join(sorted(lacking))}; give one that state_dict gave")
        differing = [name for name in here if state.get(name) != here[name]]
        if differing:
            pairs = "; ".join(f"{name} is {here[name]!r} here, {state.get(name)!r} in the state" for name in differing)
            raise ValueError(f"the state does not fit this sampler: {pairs}")

    def _identity(self, rank: Rank) -> dict[str, Any]:
        """What a state and the sampler that goes on from it have in common, besides seed and count."""
        raise NotImplementedError

    def _advanced(self, start: int, consumed: int, world_size: int) -> int:
        """Where the epoch that began at `start` is after `consumed` items of one rank."""
        return start + consumed

    def _furthest(self, epoch: int, rank: Rank) -> int:
        """The largest place that a state of this epoch can have."""
        return self._length(epoch, 0, rank)

    def _length(self, epoch: int, start: int, rank: Rank) -> int:
        raise NotImplementedError

    def _order(self, epoch: int, start: int, rank: Rank) -> Order | Batches:
        raise NotImplementedError

    def _items(self, order: Any) -> Iterator[Item]:
        raise NotImplementedError
