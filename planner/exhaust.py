"""Upper level for small clusters: every grouping and every division into pipelines, with bounds.

Branch and bound over multisets of kinds. A division is dropped as soon as an upper bound of the
micro-batches that it could run within the best time so far falls short. What remains is decided
with the exact event cost, so within the arrangements that `planner.arrange` finds the result is the
optimum. Larger clusters go through `planner.wide`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice, product

from planner.arrange import Arranger
from planner.draft import Draft, draft_of
from planner.groups import Grouping
from planner.program import DivisionProgram

_STRICTLY = 1 - 1e-9  # better means better by more than rounding
_NUM_FIRST = 8  # groupings that are tried for a first good limit,
_MAX_FIRST = 300  # with so many divisions of each
_PATIENCE = 200  # effort (see Arranger.work) without improvement after which the rest is not tried
_MAX_WAITING = 50_000  # divisions kept in memory


def exhaust(
    arranger: Arranger,
    nodes: Sequence[Sequence[Grouping]],
    *,
    dp_range: tuple[int, int],
    limit_s: float,
    is_over: Callable[[], bool],
    is_programmed: bool = True,
) -> Iterator[Draft]:
    """Finds better and better drafts; the last one is the optimum unless time or patience ran out.

    The most promising groupings are tried first for a good limit: the very first in the divisions that the
    integer program (`planner.program`) finds, one for each number of pipelines. Then the divisions of all
    groupings that might beat the limit are collected and tried, the most promising first.

    Args:
        nodes: groupings to choose from, node by node.
        limit_s: step seconds that a draft must beat.
        is_over: asked now and then; True ends the search.
        is_programmed: False leaves the integer program out, where a good limit is known.

    Yields:
        Drafts, each faster than those before.
    """
    limit = _Limit(limit_s)
    combinations = _combinations(arranger, nodes, dp_range)
    for kinds, chosen in combinations[:1] if is_programmed else ():
        for dp_degree in range(dp_range[0], min(dp_range[1], len(kinds)) + 1):
            solved = DivisionProgram(arranger.instance, Counter(kinds), dp_degree).solve()
            if solved is not None:
                yield from _try(arranger, chosen, solved[1], limit)
    for kinds, chosen in combinations[:_NUM_FIRST]:
        first = islice(_divisions(arranger, kinds, dp_range, limit), _MAX_FIRST)
        for division in nsmallest(2, first, key=lambda division: _promise_s(arranger, division)):
            yield from _try(arranger, chosen, division, limit)
    waiting: list[tuple[float, int, tuple[Grouping, ...], list[tuple[int, ...]]]] = []
    for kinds, chosen in combinations:
        for division in _divisions(arranger, kinds, dp_range, limit):
            waiting.append((_promise_s(arranger, division), len(waiting), chosen, division))
        if is_over() or len(waiting) > _MAX_WAITING:
            break
    improved_at = arranger.work
    for _, _, chosen, division in sorted(waiting):
        if is_over() or arranger.work > improved_at + _PATIENCE:
            return
        for draft in _try(arranger, chosen, division, limit):
            improved_at = arranger.work
            yield draft


@dataclass(slots=True)
class _Limit:
    """The step time to beat, which falls while the enumeration runs."""

    step_s: float


def _try(
    arranger: Arranger, chosen: tuple[Grouping, ...], division: Sequence[tuple[int, ...]], limit: _Limit
) -> Iterator[Draft]:
    draft = draft_of(arranger, chosen, division, limit.step_s * _STRICTLY)
    if draft is not None:
        limit.step_s = draft.step_s
        yield draft


def _promise_s(arranger: Arranger, division: Sequence[tuple[int, ...]]) -> float:
    """A guess of the time of a division: its pipelines as straight lines over their micro-batches."""
    sketches = [arranger.sketches.of(kinds) for kinds in division]
    lines = [(sketch.each_s, sketch.fill_s) for sketch in sketches]
    speed = sum(1 / each_s for each_s, _ in lines)
    if speed <= 0:
        return math.inf
    total = arranger.instance.num_micro_batches
    seconds = (total + sum(fill_s / each_s for each_s, fill_s in lines)) / speed  # with cut micro-batches
    counts = [max(0, int((seconds - fill_s) / each_s)) for each_s, fill_s in lines]
    for _ in range(total - sum(counts)):
        seconds, place = min(
            (fill_s + each_s * (count + 1), place)
            for place, ((each_s, fill_s), count) in enumerate(zip(lines, counts, strict=True))
        )
        counts[place] += 1
    return seconds


def _combinations(
    arranger: Arranger, nodes: Sequence[Sequence[Grouping]], dp_range: tuple[int, int]
) -> list[tuple[tuple[int, ...], tuple[Grouping, ...]]]:
    """Distinct multisets of kinds with the groupings behind them, the most promising first."""
    found: dict[tuple[int, ...], tuple[Grouping, ...]] = {}
    for chosen in product(*nodes):
        kinds = tuple(sorted(kind for grouping in chosen for kind in grouping.kinds))
        if kinds and kinds not in found:
            found[kinds] = chosen
    return sorted(found.items(), key=lambda item: (_estimate_s(arranger, item[0], dp_range), item[0]))


def _estimate_s(arranger: Arranger, kinds: tuple[int, ...], dp_range: tuple[int, int]) -> float:
    """A guess of the step time: perfect balance, with the bubble of as many equal pipelines."""
    instance = arranger.instance
    speeds = sorted((1 / instance.kinds[index].layer_s for index in kinds), reverse=True)
    total = instance.num_micro_batches
    best = math.inf
    for dp in range(dp_range[0], min(dp_range[1], len(kinds), total) + 1):
        decay = 1 - dp / total if instance.has_bubble else 1.0
        speed = sum(value * decay ** (place // dp) for place, value in enumerate(speeds))
        if speed > 0:
            best = min(best, total * instance.num_layers / speed)
    return best


def _divisions(
    arranger: Arranger, kinds: tuple[int, ...], dp_range: tuple[int, int], limit: _Limit
) -> Iterator[list[tuple[int, ...]]]:
    """Divisions of a multiset into pipelines that might run all micro-batches within the limit."""
    instance = arranger.instance
    total = instance.num_micro_batches
    low, high = dp_range

    def rest_most(rest: tuple[int, ...], limit_s: float) -> float:
        return limit_s / instance.num_layers * sum(1 / instance.kinds[index].layer_s for index in rest) * (1 + 1e-9)

    def extend(
        rest: tuple[int, ...], done: list[tuple[int, ...]], count: int, num_stages: int
    ) -> Iterator[list[tuple[int, ...]]]:
        if not rest:
            if len(done) >= low and count >= total:
                yield list(done)
            return
        limit_s = (limit.step_s - instance.sync_s) * _STRICTLY
        left = high - len(done)
        if left <= 0 or len(rest) > left * instance.max_depth or num_stages + len(rest) > total:
            return
        if count + rest_most(rest, limit_s) < total:
            return
        for part, others in _parts(rest, instance.max_depth):
            if left == 1 and others:
                continue
            if done and done[-1][0] == part[0] and part < done[-1]:
                continue
            most = arranger.relaxed_most(part, limit_s, total)
            if most < len(part):
                continue
            done.append(part)
            yield from extend(others, done, count + most, num_stages + len(part))
            done.pop()

    yield from extend(kinds, [], 0, 0)


def _parts(rest: tuple[int, ...], max_size: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Distinct sub-multisets that hold the first element, each with what is left."""
    first, others = rest[0], rest[1:]
    values = sorted(set(others))
    counts = [others.count(value) for value in values]
    for taken in product(*(range(count + 1) for count in counts)):
        if sum(taken) + 1 > max_size:
            continue
        part = (first, *(value for value, number in zip(values, taken, strict=True) for _ in range(number)))
        left = tuple(
            value for value, number, count in zip(values, taken, counts, strict=True) for _ in range(count - number)
        )
        yield part, left
