"""Every arrangement of a small pipeline at once, as arrays.

Used by `planner.arrange` where orders times splits of the layers are few enough to try them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import combinations

import numpy as np

from planner.climb import NOTHING, Arrangement
from planner.kinds import Instance

_CHUNK = 48  # arrangements simulated at once


class Table:
    """All arrangements of a multiset of kinds that fit in memory.

    `times` has shape (arrangements, stages): seconds of each stage for one micro-batch.
    """

    def __init__(self, instance: Instance, kinds: tuple[int, ...]) -> None:
        self._instance = instance
        depth = len(kinds)
        layers = _layer_choices(instance.num_layers, depth)
        layer_s = np.array([kind.layer_s for kind in instance.kinds])
        self._orders: list[tuple[int, ...]] = []
        order_rows, layer_rows, time_rows = [], [], []
        for order in _orders(kinds):
            fits = layers[(layers <= np.array(instance.caps(order))).all(axis=1)]
            if not len(fits):
                continue
            times = fits * layer_s[list(order)]
            times[:, 0] += instance.kinds[order[0]].embed_s
            times[:, -1] += instance.kinds[order[-1]].head_s
            order_rows.append(np.full(len(fits), len(self._orders)))
            self._orders.append(order)
            layer_rows.append(fits)
            time_rows.append(times)
        self._is_empty = not time_rows
        if not self._is_empty:
            self._order_of = np.concatenate(order_rows)
            self._layers = np.concatenate(layer_rows)
            self._times = np.concatenate(time_rows)
            self._prepare(depth)

    def best(self, count: int, limit_s: float) -> Arrangement:
        """The fastest arrangement for `count` micro-batches if it takes at most `limit_s`, else `NOTHING`."""
        if self._is_empty or count < self._times.shape[1]:
            return NOTHING
        if not self._instance.has_bubble:
            seconds = self._times.max(axis=1) * count
            row = int(np.argmin(seconds))
            return self._row(row, float(seconds[row])) if seconds[row] <= limit_s else NOTHING
        floors = (self._outside + count * self._times).max(axis=1)
        if limit_s < math.inf:
            rows = np.flatnonzero(floors <= limit_s)
            ranking = rows[np.argsort(floors[rows], kind="stable")]
        else:
            ranking = np.argsort(floors, kind="stable")
        best, best_row = math.inf, -1
        for start in range(0, len(ranking), _CHUNK):
            rows = ranking[start : start + _CHUNK]
            if floors[rows[0]] >= best * (1 - 1e-12):
                break
            seconds = makespans(self._times[rows], count, self._instance.forward_share, self._instance.send_s)
            place = int(np.argmin(seconds))
            if seconds[place] < best:
                best, best_row = float(seconds[place]), int(rows[place])
        return self._row(best_row, best) if best <= limit_s and best_row >= 0 else NOTHING

    def _prepare(self, depth: int) -> None:
        """What `Instance.floor_s` adds to the work of each stage: the way to it and back, and its two waits.

        The second wait is left out where a pipeline with as many micro-batches as stages would not have it.
        """
        times, hop_s, share = self._times, 2 * self._instance.send_s, self._instance.forward_share
        places = np.arange(depth)
        left = depth - 1 - places
        ahead = np.cumsum(times, axis=1)
        behind = ahead[:, -1:] - ahead + hop_s * left
        waits = np.maximum(behind - left * times * share, 0.0)
        waits[:, 1:] += np.maximum(behind - left * times * (1 - share), 0.0)[:, 1:]
        self._outside = ahead - times + hop_s * places + waits

    def _row(self, row: int, seconds: float) -> Arrangement:
        return Arrangement(
            kinds=self._orders[int(self._order_of[row])],
            layers=tuple(int(count) for count in self._layers[row]),
            seconds=seconds,
        )


def makespans(times: np.ndarray, count: int, forward_share: float, send_s: float) -> np.ndarray:
    """The event recurrence of `planner.cost` for many pipelines of equal depth at once.

    Args:
        times: stage seconds, shape (pipelines, stages).

    Returns:
        Makespan of each, shape (pipelines,).
    """
    depth = times.shape[1]
    forward = np.ascontiguousarray((times * forward_share).T)
    backward = times.T - forward
    free = np.zeros_like(forward)
    arrival = np.zeros_like(forward)
    for turn in range(count + depth - 1):
        if turn < count:
            free[0] += forward[0]
            for stage in range(1, depth):
                np.maximum(free[stage], free[stage - 1] + send_s, out=free[stage])
                free[stage] += forward[stage]
        low, high = max(0, depth - 1 - turn), min(depth, count + depth - 1 - turn)
        np.maximum(free[low:high], arrival[low:high], out=free[low:high])
        free[low:high] += backward[low:high]
        start = max(low, 1)
        arrival[start - 1 : high - 1] = free[start:high] + send_s
    return np.asarray(free.max(axis=0))


def _orders(kinds: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Distinct orders of a multiset, in lexicographic order."""
    if not kinds:
        yield ()
        return
    for place, kind in enumerate(kinds):
        if place == 0 or kind != kinds[place - 1]:
            for rest in _orders(kinds[:place] + kinds[place + 1 :]):
                yield (kind, *rest)


@cache
def _layer_choices(num_layers: int, depth: int) -> np.ndarray:
    """All ways to give each of `depth` stages at least one layer, shape (ways, depth)."""
    cuts = np.array(list(combinations(range(1, num_layers), depth - 1)), dtype=int)
    cuts = cuts.reshape(math.comb(num_layers - 1, depth - 1), depth - 1)
    edges = np.hstack([np.zeros((len(cuts), 1), int), cuts, np.full((len(cuts), 1), num_layers)])
    return np.diff(edges, axis=1)
