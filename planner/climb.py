"""Arranging one larger pipeline: a balanced start, then local search on the exact event cost.

Used by `planner.arrange` where there are too many arrangements to try them all.

Source: design of the project, section 5. That the busiest stage should stand first, where it hides the
filling and draining of the others, follows from `Instance.floor_s`; measured, see bench/planner.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from planner.assign import assign_layers
from planner.kinds import Instance

_CROWDED = 0.9  # share of its memory that a fair share of layers may fill before memory counts as short
_GIVERS = 3  # stages, the busiest ones, that may give a layer when another order is refined
_REACH = 1.05  # how much slower another order may be, its layers unchanged, to be worth refining


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Stages of one pipeline.

    Args:
        kinds: kind of each stage's group, in stage order.
        layers: number of layers of each stage.
        seconds: makespan; inf if nothing fits (then the other fields are empty).
    """

    kinds: tuple[int, ...]
    layers: tuple[int, ...]
    seconds: float


NOTHING = Arrangement(kinds=(), layers=(), seconds=math.inf)


def climb(instance: Instance, kinds: Sequence[int], count: int) -> Arrangement:
    """A fast arrangement of these kinds for `count` micro-batches; `NOTHING` if none was found that fits."""
    if len(kinds) > min(count, instance.max_depth):
        return NOTHING
    orders = first_orders(instance, kinds)
    starts = [(order, layers) for order in orders if (layers := balanced(instance, order)) is not None]
    if not starts:
        for order in (orders[0][::-1], *_rotations(orders[0])):
            if (layers := balanced(instance, order)) is not None:
                starts = [(order, layers)]
                break
    climbs = [_Climb(instance, order, layers, count).run() for order, layers in starts]
    return min(climbs, key=lambda found: found.seconds, default=NOTHING)


def first_orders(instance: Instance, kinds: Sequence[int]) -> list[list[int]]:
    """Good orders to begin with: slow groups first; and, where memory is short, emptiest groups first.

    Early stages hold the activations of more micro-batches. So the group whose fair share of the layers
    fills its memory least, if it stood first, should stand first.
    """
    members = {index: instance.kinds[index] for index in kinds}
    slow_first = sorted(kinds, key=lambda index: (-members[index].layer_s, index))
    speed = sum(1 / members[index].layer_s for index in kinds)
    depth = len(kinds)
    crowding = {
        index: instance.num_layers / speed / kind.layer_s / max(kind.caps[depth - 1], 1e-9)
        for index, kind in members.items()
    }
    if max(crowding.values()) < _CROWDED:
        return [slow_first]
    emptiest_first = sorted(slow_first, key=crowding.__getitem__)
    return [slow_first] if emptiest_first == slow_first else [slow_first, emptiest_first]


def balanced(instance: Instance, order: Sequence[int]) -> list[int] | None:
    """Layers for this order with the slowest stage as fast as it can be; None if they do not fit."""
    members = [instance.kinds[index] for index in order]
    extra_s = [0.0] * len(members)
    extra_s[0] += members[0].embed_s
    extra_s[-1] += members[-1].head_s
    return assign_layers([kind.layer_s for kind in members], extra_s, instance.caps(order), instance.num_layers)


def _rotations(order: list[int]) -> Iterator[list[int]]:
    for shift in range(1, len(order)):
        yield order[shift:] + order[:shift]


def settle(instance: Instance, order: Sequence[int], layers: Sequence[int], count: int) -> Arrangement:
    """The cheap half of `climb` from one start: its `seconds` are the lower bound, not the makespan."""
    return _Climb(instance, order, layers, count, is_exact=False).run()


class _Climb:
    """Local search from one arrangement: any change that makes it faster is kept, until none is left."""

    def __init__(
        self, instance: Instance, order: Sequence[int], layers: Sequence[int], count: int, *, is_exact: bool = True
    ) -> None:
        self._instance = instance
        self._is_exact = is_exact
        self._count = count
        self._order = list(order)
        self._layers = list(layers)
        self._caps = instance.caps(self._order)
        cost = instance.pipeline_s if is_exact else instance.floor_s
        self._seconds = cost(instance.stage_seconds(self._order, self._layers), count)

    def run(self) -> Arrangement:
        # The cheap neighbourhoods first; a dearer one only when they are exhausted.
        while (
            self._busiest_first()
            or self._move_layers()
            or self._reorder(refine=False)
            or (self._is_exact and self._reorder(refine=True))
        ):
            pass
        return Arrangement(kinds=tuple(self._order), layers=tuple(self._layers), seconds=self._seconds)

    def _is_better(self, order: list[int], layers: list[int], caps: list[int]) -> bool:
        """Whether this is faster; if so, it is kept. The layers are known to fit."""
        times = self._instance.stage_seconds(order, layers)
        limit_s = self._seconds * (1 - 1e-9)
        seconds = self._instance.floor_s(times, self._count)
        if seconds < limit_s and self._is_exact:
            seconds = self._instance.pipeline_s(times, self._count)
        if seconds >= limit_s:
            return False
        self._order, self._layers, self._caps, self._seconds = order, layers, caps, seconds
        return True

    def _busiest_first(self) -> bool:
        """All groups in descending order of their time, layers unchanged."""
        kinds = self._instance.kinds
        times = [kinds[index].layer_s * count for index, count in zip(self._order, self._layers, strict=True)]
        places = sorted(range(len(times)), key=lambda place: -times[place])
        return self._try_places(places, refine=False)

    def _move_layers(self) -> bool:
        """One layer from one stage to another."""
        improved = False
        for moved in _moves(self._layers, self._caps, range(len(self._layers))):
            improved |= self._is_better(self._order, moved, self._caps)
            if improved:
                break
        return improved

    def _reorder(self, *, refine: bool) -> bool:
        """Two groups exchanged, or one moved elsewhere; with their layers, or also with one layer moved."""
        depth, improved = len(self._order), False
        for one in range(depth):
            for other in range(depth):
                if one < other:
                    improved |= self._try_places(_exchanged(depth, one, other), refine=refine)
                if abs(one - other) > 1 and not refine:
                    improved |= self._try_places(_moved(depth, one, other), refine=refine)
            if improved and refine:
                break
        return improved

    def _try_places(self, places: Sequence[int], *, refine: bool) -> bool:
        order = [self._order[place] for place in places]
        if order == self._order:
            return False
        layers = [self._layers[place] for place in places]
        caps = self._instance.caps(order)
        fits = all(number <= cap for number, cap in zip(layers, caps, strict=True))
        if fits and self._is_better(order, layers, caps):
            return True
        if not refine or min(caps) < 1:
            return False
        times = self._instance.stage_seconds(order, layers)
        if fits and self._instance.floor_s(times, self._count) > self._seconds * _REACH:
            return False
        improved = False
        busiest = sorted(range(len(times)), key=lambda place: -times[place])[:_GIVERS]
        for moved in _moves(layers, caps, busiest):
            if fits or all(number <= cap for number, cap in zip(moved, caps, strict=True)):
                improved |= self._is_better(order, moved, caps)
                if improved:
                    break
        return improved


def _moves(layers: Sequence[int], caps: Sequence[int], givers: Iterable[int]) -> Iterator[list[int]]:
    """Every way to take one layer from one of the givers and give it to another stage."""
    for giver in givers:
        if layers[giver] > 1:
            for taker in range(len(layers)):
                if giver != taker and layers[taker] < caps[taker]:
                    moved = list(layers)
                    moved[giver] -= 1
                    moved[taker] += 1
                    yield moved


def _moved(depth: int, one: int, other: int) -> list[int]:
    places = list(range(depth))
    places.insert(other, places.pop(one))
    return places


def _exchanged(depth: int, one: int, other: int) -> list[int]:
    places = list(range(depth))
    places[one], places[other] = places[other], places[one]
    return places
