"""A quick picture of one pipeline: its time as a function of micro-batches, without searching.

Layers are balanced, the busiest stage stands first, and the bound of `Instance.floor_s` stands for the
makespan; where the fill matters, a short local search improves on that for a typical number of
micro-batches. Much cheaper than `planner.arrange` and mostly within a few percent of it, so the upper level
of the search looks at many pipelines this way and at few of them exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from planner.climb import balanced, first_orders, settle
from planner.kinds import Instance

_MANY = 6  # with so many micro-batches a stage, balance is all that counts
_SHORT = 4  # stages up to which local search is cheap enough here


class Sketch:
    """The time of one pipeline, `max over j of fill_j + m * each_j`.

    Attributes:
        lines: `(each_s, fill_s)` of every stage; empty if the layers do not fit in memory.
        speed: layers a second of all its groups together; `work` layers to do, extras counted as layers.
        room: layers that fit in memory, over layers to hold.
    """

    __slots__ = ("depth", "each_s", "fill_s", "lines", "room", "speed", "work")

    def __init__(self, instance: Instance, kinds: tuple[int, ...]) -> None:
        self.depth = len(kinds)
        self.lines: list[tuple[float, float]] = []
        self.each_s, self.fill_s = math.inf, 0.0
        members = [instance.kinds[index] for index in kinds]
        self.speed = sum(1 / kind.layer_s for kind in members)
        extra = min(kind.embed_s / kind.layer_s for kind in members) + min(k.head_s / k.layer_s for k in members)
        self.work = instance.num_layers + extra
        self.room = 0.0
        if self.depth > instance.max_depth:
            return
        best: list[float] = []
        count = instance.typical_count(self.speed, self.depth)
        for order in first_orders(instance, kinds):
            caps = instance.caps(order)
            self.room = max(self.room, sum(caps) / instance.num_layers if min(caps) > 0 else 0.0)
            layers = balanced(instance, order)
            if layers is None:
                continue
            if instance.has_bubble and count < _MANY * self.depth and 1 < self.depth <= _SHORT:
                settled = settle(instance, order, layers, count)
                times = instance.stage_seconds(settled.kinds, settled.layers)
            else:
                times = _busiest_first(instance, order, layers)
            if not best or instance.floor_s(times, count) < instance.floor_s(best, count):
                best = times
        if best:
            self.lines = _lines(instance, best)
            self.each_s = max(each_s for each_s, _ in self.lines)
            self.fill_s = self.seconds(count) - count * self.each_s

    def correct(self, count: int, seconds: float) -> None:
        """Takes in what the pipeline really takes for that many micro-batches, once it has been arranged."""
        if seconds == math.inf:
            self.lines, self.each_s, self.fill_s, self.room = [], math.inf, 0.0, 0.0
        elif self.lines:
            shift_s = seconds - self.seconds(count)
            self.lines = [(each_s, fill_s + shift_s) for each_s, fill_s in self.lines]
            self.fill_s += shift_s

    def seconds(self, count: int) -> float:
        """Seconds for that many micro-batches; inf if the layers do not fit."""
        if not self.lines or count < self.depth:
            return math.inf
        return max(fill_s + count * each_s for each_s, fill_s in self.lines)

    def most(self, limit_s: float) -> float:
        """Micro-batches within the limit, not rounded; 0 if the layers do not fit or too few are possible."""
        if not self.lines:
            return 0.0
        count = min((limit_s - fill_s) / each_s for each_s, fill_s in self.lines)
        return count if count >= self.depth else 0.0


class Sketcher:
    """Sketches of the pipelines of one instance, remembered. Kinds are given as ascending tuples."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._known: dict[tuple[int, ...], Sketch] = {}

    def of(self, kinds: tuple[int, ...]) -> Sketch:
        found = self._known.get(kinds)
        if found is None:
            found = self._known[kinds] = Sketch(self.instance, kinds)
        return found

    def known(self) -> Iterator[tuple[tuple[int, ...], Sketch]]:
        """All pipelines looked at so far that fit in memory."""
        return ((kinds, sketch) for kinds, sketch in self._known.items() if sketch.lines)


def _busiest_first(instance: Instance, order: Sequence[int], layers: Sequence[int]) -> list[float]:
    """Seconds of the stages, the busiest first if its layers fit there."""
    kinds = instance.kinds
    places = sorted(range(len(order)), key=lambda place: -kinds[order[place]].layer_s * layers[place])
    moved, moved_layers = [order[place] for place in places], [layers[place] for place in places]
    if all(number <= cap for number, cap in zip(moved_layers, instance.caps(moved), strict=True)):
        return instance.stage_seconds(moved, moved_layers)
    return instance.stage_seconds(order, layers)


def _lines(instance: Instance, times: Sequence[float]) -> list[tuple[float, float]]:
    """`(each_s, fill_s)` of every stage as in `Instance.floor_s`, for enough micro-batches."""
    if not instance.has_bubble:
        return [(max(times), 0.0)]
    share, hop_s = instance.forward_share, 2 * instance.send_s
    behind = sum(times) + hop_s * (len(times) - 1)
    before, lines = 0.0, []
    for place, seconds in enumerate(times):
        left = len(times) - 1 - place
        behind -= seconds
        waits = max(0.0, behind - left * seconds * share) + max(0.0, behind - left * seconds * (1 - share))
        lines.append((seconds, before + waits))
        before += seconds + hop_s
        behind -= hop_s
    return lines
