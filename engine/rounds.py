"""In which order a migration takes tensors over: rounds, computed by every rank alike, sending nothing.

A unit is one parameter of one of the shard's tensors (its weights, or its master weights, ...), with
all its holders. In a round the new spans of some units are allocated, filled and verified, then the
old ones released. The next round's spans arrive while those of the last are verified, so a
rank holds at most two rounds' worth beyond what it must. In which order units come decides what it must: a rank
that takes in all its new layers before it hands its old ones on needs room for both. So units that
bring and units that take memory alternate on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.digest import SCRATCH_BYTES
from engine.layout import Holdings, Layout
from engine.transfers import Transfer

BUCKET_BYTES = 16 << 20
DIRECT_BYTES = 64 << 10
"""Pieces this long travel from tensor to tensor; shorter ones are packed with others of their pair."""
_RESOLUTION = 1 << 12


@dataclass(frozen=True, slots=True)
class Unit:
    """All spans of one parameter in one of `Shard.tensors`."""

    store: str
    parameter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Units that are taken over together.

    Args:
        is_packed: short pieces are packed; else each travels by itself, to need no buffers.
        is_alone: the round before must be verified and released before this one begins.
    """

    units: tuple[Unit, ...]
    is_packed: bool = True
    is_alone: bool = False

    def alone(self) -> Round:
        """The same units, not beside another round."""
        return replace(self, is_alone=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Itinerary:
    """All rounds of a migration.

    Args:
        bucket_bytes: what a round may bring to one rank: as asked for, or the largest part of one parameter that
            a rank receives, if that is more.
        growth_bytes: for each device, what it holds after the migration less what it held before.
        extra_bytes: for each device, the most that it holds on the way beyond the larger of the two.
    """

    rounds: tuple[Round, ...]
    bucket_bytes: int
    growth_bytes: Mapping[int, int]
    extra_bytes: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cargo:
    """One of the shard's tensors on the move.

    Args:
        old, new: who holds what, before and after.
        arrivals: transfers by parameter.
        item_bytes: of one element.
    """

    old: Holdings
    new: Holdings
    arrivals: Mapping[int, Sequence[Transfer]]
    item_bytes: int


def itinerary(
    old: Layout, new: Layout, cargo: Mapping[str, Cargo], *, gradient_bytes: int, bucket_bytes: int = BUCKET_BYTES
) -> Itinerary:
    """Orders the units and packs them into rounds.

    Args:
        cargo: by the name of the tensor in `Shard.tensors`.
        gradient_bytes: of one gradient element; gradients are released before the rounds and made anew after.
        bucket_bytes: what a round may bring to one rank.
    """
    devices = sorted({*old.weights, *new.weights, *old.states, *new.states})
    column = {device: index for index, device in enumerate(devices)}
    kinds = {id(load): load for load in cargo.values()}  # master weights and moments share theirs
    tables = {key: _tables(load, len(old.parameters), column) for key, load in kinds.items()}
    units = [Unit(name, parameter) for parameter in range(len(old.parameters)) for name in cargo]
    shape = (len(units), len(devices))

    def rows(which: int) -> Tensor:
        return torch.stack([tables[id(load)][which] for load in cargo.values()], dim=1).reshape(shape)

    brought, taken, staged = rows(0), rows(1), rows(2)
    held_before = _held(old, cargo, gradient_bytes, column, is_new=False)
    held_after = _held(new, cargo, gradient_bytes, column, is_new=True)
    ceiling = torch.maximum(held_before, held_after)
    start = held_before - gradient_bytes * _elements(old.weights, column) - ceiling
    most = int(brought.max())
    bucket = max(bucket_bytes, most)
    scratch = SCRATCH_BYTES // 2 if bucket >= 4 * SCRATCH_BYTES else 0
    packer = _Packer(start, max(bucket - scratch, most), 2 * (bucket - scratch))
    for unit in _ordered(brought - taken, start):
        packer.add(units[unit], brought[unit], taken[unit], staged[unit])
    return Itinerary(
        rounds=packer.finish(),
        bucket_bytes=bucket,
        growth_bytes=dict(zip(devices, (held_after - held_before).tolist(), strict=True)),
        extra_bytes=dict(zip(devices, packer.extra.tolist(), strict=True)),
    )


def _tables(load: Cargo, num_parameters: int, column: Mapping[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Bytes that each parameter brings to, takes from, and needs in buffers of each device, `[parameters, devices]`."""
    brought, taken, staged = ([[0] * len(column) for _ in range(num_parameters)] for _ in range(3))
    for device, index in column.items():
        before, after = frozenset(load.old.get(device, ())), frozenset(load.new.get(device, ()))
        for span in after - before:
            brought[span.parameter][index] += span.num_elements * load.item_bytes
        for span in before - after:
            taken[span.parameter][index] += span.num_elements * load.item_bytes
    for parameter, moves in load.arrivals.items():
        for move in moves:
            size = move.span.num_elements * load.item_bytes
            if move.source != move.target and size < DIRECT_BYTES:
                staged[parameter][column[move.source]] += size
                staged[parameter][column[move.target]] += size
    brought_, taken_, staged_ = (torch.tensor(table, dtype=torch.int64) for table in (brought, taken, staged))
    return brought_, taken_, staged_


def _held(
    layout: Layout, cargo: Mapping[str, Cargo], gradient_bytes: int, column: Mapping[int, int], *, is_new: bool
) -> Tensor:
    total = gradient_bytes * _elements(layout.weights, column)
    for load in cargo.values():
        total += load.item_bytes * _elements(load.new if is_new else load.old, column)
    return total


def _elements(holdings: Holdings, column: Mapping[int, int]) -> Tensor:
    return torch.tensor([sum(span.num_elements for span in holdings.get(device, ())) for device in column])


def _ordered(change: Tensor, start: Tensor) -> list[int]:
    """The units in an order that keeps every device near or below its ceiling.

    Greedy: the next unit is the one after which the squares of what devices hold, measured from well below
    their ceilings, add up to the least. Integers only, so that all ranks find the same order.

    Args:
        change: bytes that each unit adds to each device, `[units, devices]`.
        start: bytes above (below: negative) the ceiling, `[devices]`.
    """
    if not change.numel():
        return list(range(len(change)))
    grain = max(1, int(change.abs().max()) // _RESOLUTION)
    kinds, kind_of = torch.unique(change // grain, dim=0, return_inverse=True)
    members: list[list[int]] = [[] for _ in range(len(kinds))]
    for unit, kind in enumerate(kind_of.tolist()):
        members[kind].append(unit)
    firsts = [iter(units) for units in members]
    left = torch.tensor([len(units) for units in members])
    level = start // grain
    margin = max(_RESOLUTION, int(-level.min()))
    order: list[int] = []
    for _ in range(len(change)):
        cost = (level + kinds + margin).clamp_(min=0).square_().sum(1)
        cost[left == 0] = torch.iinfo(torch.int64).max
        kind = int(cost.argmin())
        order.append(next(firsts[kind]))
        left[kind] -= 1
        level = level + kinds[kind]
    return order


class _Packer:
    """Fills rounds with units, in their order, as long as no device gets two buckets above its ceiling.

    Args:
        level: bytes above the ceiling, `[devices]`, before the first round.
        room: what one round may bring to a device, buffers included.
        limit: what a device may hold above its ceiling.
    """

    def __init__(self, level: Tensor, room: int, limit: int) -> None:
        self.extra = torch.zeros_like(level)
        self.rounds: list[Round] = []
        self._room, self._limit = room, limit
        self._level = level  # once all rounds before the last one have released what they replace
        self._last_cost = self._last_change = torch.zeros_like(level)
        self._cost, self._change = torch.zeros_like(level), torch.zeros_like(level)
        self._open(is_packed=True, is_alone=False)

    def add(self, unit: Unit, brought: Tensor, taken: Tensor, staged: Tensor) -> None:
        """Puts the unit into the round that is being filled, or into a new one."""
        if not self._fits(brought, staged):
            self._close()
            for is_packed, is_alone in ((True, False), (False, False), (True, True), (False, True)):
                self._open(is_packed=is_packed, is_alone=is_alone)
                if self._fits(brought, staged):
                    break
        self._units.append(unit)
        self._cost = self._cost + brought + (staged if self._is_packed else 0)
        self._change = self._change + brought - taken

    def finish(self) -> tuple[Round, ...]:
        self._close()
        return tuple(self.rounds)

    def _fits(self, brought: Tensor, staged: Tensor) -> bool:
        cost = self._cost + brought + (staged if self._is_packed else 0)
        return int(cost.max()) <= self._room and int((self._start() + cost).max()) <= self._limit

    def _start(self) -> Tensor:
        """Bytes above the ceiling when the round that is being filled begins."""
        return self._level + (self._last_change if self._is_alone else self._last_cost)

    def _open(self, *, is_packed: bool, is_alone: bool) -> None:
        self._is_packed, self._is_alone = is_packed, is_alone
        self._units: list[Unit] = []
        self._cost, self._change = torch.zeros_like(self._level), torch.zeros_like(self._level)

    def _close(self) -> None:
        if not self._units:
            return
        self.rounds.append(Round(units=tuple(self._units), is_packed=self._is_packed, is_alone=self._is_alone))
        self.extra = torch.maximum(self.extra, self._start() + self._cost)
        self._level = self._level + self._last_change
        self._last_cost, self._last_change = self._cost, self._change
        self._open(is_packed=True, is_alone=False)
