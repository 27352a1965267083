"""One pipeline: in which order its groups stand, and how many layers each of them holds.

Answers two questions about a multiset of kinds, both remembered: the fastest arrangement for m
micro-batches, and the most micro-batches within a time. Small pipelines are answered by trying
every arrangement (`planner.table`), larger ones by local search (`planner.climb`). It does not know the
other pipelines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.climb import NOTHING, Arrangement, climb
from planner.kinds import Instance
from planner.sketch import Sketcher
from planner.table import Table

TABLE_ROWS = 3_000  # arrangements up to which all are tried


class Arranger:
    """Best arrangements of pipelines of one instance. Kinds are given as ascending tuples.

    Args:
        table_rows: arrangements up to which all are tried; 0 leaves everything to local search.
    """

    def __init__(self, instance: Instance, *, table_rows: int = TABLE_ROWS) -> None:
        self.instance = instance
        self.work = 0.0  # effort so far in rough milliseconds, counted and not timed: equal input, equal effort
        self._table_rows = table_rows
        self._best: dict[tuple[tuple[int, ...], int], Arrangement] = {}
        self._above: dict[tuple[tuple[int, ...], int], float] = {}
        self._tables: dict[tuple[int, ...], Table | None] = {}
        self._rows: dict[tuple[int, ...], int] = {}
        self.sketches = Sketcher(instance)
        self._sums: dict[tuple[int, ...], _Sums] = {}

    def best(self, kinds: tuple[int, ...], num_micro_batches: int) -> Arrangement:
        """The fastest arrangement for that many micro-batches; `NOTHING` if no arrangement fits."""
        return self.within(kinds, num_micro_batches, math.inf)

    def within(self, kinds: tuple[int, ...], num_micro_batches: int, limit_s: float) -> Arrangement:
        """The fastest arrangement if it takes at most `limit_s`, else `NOTHING`: much cheaper than `best`."""
        key = (kinds, num_micro_batches)
        found = self._best.get(key)
        if found is None and self._above.get(key, -1.0) < limit_s:
            table = self._table(kinds)
            if table is not None:
                found = table.best(num_micro_batches, limit_s)
                self.work += 0.1
            else:
                found = climb(self.instance, kinds, num_micro_batches)
                self.work += 0.01 * len(kinds) ** 3
            if found.seconds <= limit_s:
                self._best[key] = found
            else:
                self._above[key] = limit_s
        return found if found is not None and found.seconds <= limit_s else NOTHING

    def most(self, kinds: tuple[int, ...], limit_s: float, at_most: int) -> int:
        """Most micro-batches, up to `at_most`, that the pipeline does in `limit_s`; 0 if fewer than its stages."""
        count = self.relaxed_most(kinds, limit_s, at_most)
        while count >= len(kinds):
            if self.within(kinds, count, limit_s).layers:
                return count
            count -= 1
        return 0

    def relaxed_most(self, kinds: tuple[int, ...], limit_s: float, at_most: int) -> int:
        """An upper bound of `most`, in microseconds, from three relaxations of `Instance.floor_s`.

        Layers may be cut and a stage only waits for those before it: the fastest groups do most in front,
        each as full as it may be. Layers may be cut and the bounds of all stages are averaged, weighted by
        speed: nobody has less in front and behind than the fastest. Layers are whole and nobody waits.
        """
        instance, depth = self.instance, len(kinds)
        if depth > instance.max_depth:
            return 0
        sums = self._sums_of(kinds)
        count = math.floor(min(at_most, limit_s * sums.speed / sums.work * (1 + 1e-9)))
        if math.isinf(limit_s):
            return count if count >= depth else 0
        if instance.has_bubble:
            share = min(instance.forward_share, 1 - instance.forward_share)
            each = (limit_s - (depth - 1) * 2 * instance.send_s) / sums.work
            averaged = (each - 1 / sums.speeds[0]) * sums.speed + 1 + (depth - 1) * share
            count = min(count, math.floor(averaged * (1 + 1e-9)))
        step_s = 2 * instance.send_s
        while count >= depth:
            left, done = limit_s, 0.0
            if instance.has_bubble:
                for speed in sums.speeds:
                    share = left / count
                    done += speed * share
                    left -= share + step_s
                    if left <= 0:
                        break
            if done >= sums.work * (1 - 1e-9) or not instance.has_bubble:
                share = limit_s / count * (1 + 1e-9)
                if sum(min(cap, int(share * speed)) for speed, cap in sums.members) >= instance.num_layers:
                    return count
            count -= 1
        return 0

    def _sums_of(self, kinds: tuple[int, ...]) -> _Sums:
        found = self._sums.get(kinds)
        if found is None:
            found = self._sums[kinds] = _Sums(self.instance, kinds)
        return found

    def _table(self, kinds: tuple[int, ...]) -> Table | None:
        if kinds not in self._tables:
            rows = self._num_rows(kinds)
            fits = len(kinds) <= self.instance.max_depth and rows <= self._table_rows
            self._tables[kinds] = Table(self.instance, kinds) if fits else None
            self.work += 0.2 + rows / 2_000 if fits else 0.0
        return self._tables[kinds]

    def _num_rows(self, kinds: tuple[int, ...]) -> int:
        """Arrangements of the multiset: splits of the layers times distinct orders."""
        found = self._rows.get(kinds)
        if found is None:
            found = math.comb(self.instance.num_layers - 1, len(kinds) - 1) * _num_orders(kinds)
            self._rows[kinds] = found
        return found


class _Sums:
    """What the relaxations need of a multiset of kinds.

    `speeds`: layers a second of each group, fastest first; `work`: layers to do, with embedding and head
    counted as layers; `members`: speed and memory cap of each group.
    """

    __slots__ = ("members", "speed", "speeds", "work")

    def __init__(self, instance: Instance, kinds: tuple[int, ...]) -> None:
        groups = [instance.kinds[index] for index in kinds]
        self.speeds = sorted((1 / kind.layer_s for kind in groups), reverse=True)
        self.speed = sum(self.speeds)
        self.work = (
            instance.num_layers
            + min(kind.embed_s / kind.layer_s for kind in groups)
            + min(kind.head_s / kind.layer_s for kind in groups)
        )
        self.members = [(1 / kind.layer_s, kind.caps[0]) for kind in groups]


def _num_orders(kinds: Sequence[int]) -> int:
    number = math.factorial(len(kinds))
    for kind in set(kinds):
        number //= math.factorial(kinds.count(kind))
    return number
