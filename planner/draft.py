"""A plan in terms of kinds: what the search produces, before devices are chosen.

`planner.placement` turns it into a plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.arrange import Arranger
from planner.climb import Arrangement
from planner.groups import Grouping
from planner.kinds import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Groupings of the nodes, and pipelines made of their groups.

    Args:
        micro_batch_size: sequences in a micro-batch.
        kinds: what the indices in groupings and arrangements refer to.
        groupings: how each node is cut, in node order.
        pipelines: the arrangement of each pipeline and its micro-batches.
        step_s: predicted seconds of a step.
    """

    micro_batch_size: int
    kinds: Sequence[Kind]
    groupings: tuple[Grouping, ...]
    pipelines: tuple[tuple[Arrangement, int], ...]
    step_s: float


def draft_of(
    arranger: Arranger, groupings: Sequence[Grouping], division: Sequence[tuple[int, ...]], limit_s: float
) -> Draft | None:
    """The best draft with this division, or None if it cannot reach the limit.

    Args:
        division: kinds of each pipeline.
        limit_s: step seconds that the draft may take.
    """
    instance = arranger.instance
    total = instance.num_micro_batches
    pipeline_limit_s = limit_s - instance.sync_s
    most = [arranger.relaxed_most(kinds, pipeline_limit_s, total) for kinds in division]
    # Short pipelines are the cheapest to ask; often they suffice to see that the limit is out of reach.
    for place in sorted(range(len(division)), key=lambda place: len(division[place])):
        most[place] = arranger.most(division[place], pipeline_limit_s, total)
        if most[place] == 0 or sum(most) < total:
            return None
    counts, left = most, total - sum(most)
    # Taking micro-batches from the slowest pipeline until the sum is right is optimal.
    while left < 0:
        seconds = [
            arranger.best(kinds, count).seconds if count > len(kinds) else -1.0
            for kinds, count in zip(division, counts, strict=True)
        ]
        slowest = max(range(len(counts)), key=seconds.__getitem__)
        if seconds[slowest] < 0:
            return None
        counts[slowest] -= 1
        left += 1
    arrangements = [arranger.best(kinds, count) for kinds, count in zip(division, counts, strict=True)]
    return Draft(
        micro_batch_size=instance.micro_batch_size,
        kinds=instance.kinds,
        groupings=tuple(groupings),
        pipelines=tuple(zip(arrangements, counts, strict=True)),
        step_s=max(arrangement.seconds for arrangement in arrangements) + instance.sync_s,
    )


def draft_near(
    arranger: Arranger, groupings: Sequence[Grouping], division: Sequence[tuple[int, ...]], counts: Sequence[int]
) -> Draft | None:
    """A good draft with this division, starting from given micro-batches; None if a pipeline does not fit.

    Micro-batches go from the slowest pipeline to the one that ends first with one more, while that helps.

    Args:
        counts: micro-batches of each pipeline, at least its stages, that add up to the total.
    """
    instance = arranger.instance
    counts = list(counts)
    seconds = [arranger.best(kinds, count).seconds for kinds, count in zip(division, counts, strict=True)]
    following: dict[tuple[tuple[int, ...], int], float] = {}

    def after(place: int) -> float:
        key = (division[place], counts[place] + 1)
        if key not in following:
            following[key] = arranger.best(*key).seconds
        return following[key]

    while True:
        slowest = max(range(len(counts)), key=seconds.__getitem__)
        if counts[slowest] <= len(division[slowest]):
            break
        taker = min((place for place in range(len(counts)) if place != slowest), key=after, default=None)
        if taker is None or after(taker) >= seconds[slowest] * (1 - 1e-9):
            break
        counts[slowest] -= 1
        counts[taker] += 1
        for place in (slowest, taker):
            seconds[place] = arranger.best(division[place], counts[place]).seconds
    step_s = max(seconds) + instance.sync_s
    if step_s == math.inf:
        return None
    return Draft(
        micro_batch_size=instance.micro_batch_size,
        kinds=instance.kinds,
        groupings=tuple(groupings),
        pipelines=tuple((arranger.best(kinds, count), count) for kinds, count in zip(division, counts, strict=True)),
        step_s=step_s,
    )
