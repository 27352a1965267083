"""Upper level for larger clusters, first part: which TP degree and how many pipelines to begin with.

A scheme is the uniform plan that a conventional job would run: groups of one size, pipelines of (nearly)
one length. Schemes are ranked by what they would take if every device were healthy; the search then starts
from the best few and may leave them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.problem import Problem
from planner.sketch import Sketch, Sketcher

_MAX_DP = 48  # values of dp that are spread over a wide range


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A starting point.

    Args:
        instance_index: which micro-batch size, as an index into the problem's instances.
        tp_degree: size of the groups.
        dp_degree: number of pipelines.
        step_s: step seconds if every device were healthy, roughly; inf if it would not fit in memory.
        stage_s: seconds of a stage for one micro-batch in that plan, if layers could be cut.
    """

    instance_index: int
    tp_degree: int
    dp_degree: int
    step_s: float
    stage_s: float


def schemes(problem: Problem, sketchers: Sequence[Sketcher]) -> list[Scheme]:
    """All starting points, the most promising first; those that do not fit in memory last."""
    found = []
    memory = min((memory for node in problem.nodes for _, memory in node), default=0.0)
    for index, (sketcher, sizes) in enumerate(zip(sketchers, problem.group_sizes, strict=True)):
        instance = sketcher.instance
        for size in sizes:
            num_groups = sum(len(node) // size for node in problem.nodes)
            kind = instance.kind(size, 1.0, memory)
            low, high = problem.dp_range
            high_here = min(high, num_groups, instance.num_micro_batches)
            even = {num_groups // depth for depth in range(1, instance.max_depth + 1)}
            for dp in _values(low, high_here, even):
                step_s, stage_s = _uniform_s(sketcher, kind, num_groups, dp)
                found.append(
                    Scheme(
                        instance_index=index,
                        tp_degree=size,
                        dp_degree=dp,
                        step_s=step_s + instance.sync_s,
                        stage_s=stage_s,
                    )
                )
    return sorted(found, key=lambda scheme: (scheme.step_s, scheme.dp_degree, scheme.tp_degree))


def _values(low: int, high: int, even: set[int]) -> list[int]:
    """All numbers of the range; of a wide one an even spread over logarithms, and those that divide evenly."""
    if high - low < _MAX_DP:
        return list(range(low, high + 1))
    ratio = (high / low) ** (1 / (_MAX_DP - 1))
    spread = {round(low * ratio**step) for step in range(_MAX_DP)} | {low, high}
    return sorted(spread | {dp for dp in even if low <= dp <= high})


def _uniform_s(sketcher: Sketcher, kind: int, num_groups: int, dp: int) -> tuple[float, float]:
    """Step and stage seconds if `num_groups` groups of one kind are divided as evenly as they go."""
    instance = sketcher.instance
    depth, longer = divmod(num_groups, dp)
    if depth >= instance.max_depth:
        depth, longer = instance.max_depth, 0
    short = sketcher.of((kind,) * depth)
    if not longer:
        return _time(short, math.ceil(instance.num_micro_batches / dp)), short.work / short.speed
    long = sketcher.of((kind,) * (depth + 1))
    if not long.lines or not short.lines:
        return math.inf, short.work / short.speed
    share = dp - longer + longer * short.each_s / long.each_s
    fair = int(instance.num_micro_batches / share)
    times = [
        _split_s(short, long, dp - longer, longer, count, instance.num_micro_batches) for count in (fair, fair + 1)
    ]
    return min(times), short.work / short.speed


def _split_s(short: Sketch, long: Sketch, num_short: int, num_long: int, count: int, total: int) -> float:
    """Seconds if each short pipeline runs `count` micro-batches and the long ones the rest."""
    rest = math.ceil((total - count * num_short) / num_long)
    return max(_time(short, count), _time(long, rest))


def _time(sketch: Sketch, count: int) -> float:
    return sketch.seconds(max(count, sketch.depth))
