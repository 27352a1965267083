"""Upper level for larger clusters, second part: a first division for a scheme.

Every node is cut into groups of the scheme's size, unless a straggler makes another cut faster; then the
groups are dealt to the pipelines, the fastest first, always to the pipeline that has least. Local search
(`planner.improve`) takes it from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from planner.division import Division, Kinds
from planner.groups import Grouping
from planner.kinds import Instance

_PLAIN = 0.1  # how much more a node is worth that is cut into groups of the scheme's size only


def first_division(
    instance: Instance, nodes: Sequence[Sequence[Grouping]], *, tp_degree: int, dp_degree: int, stage_s: float
) -> Division | None:
    """A division that uses groups of `tp_degree` wherever that is not slow.

    Args:
        nodes: groupings to choose from, node by node; equal nodes share the same list object.
        stage_s: seconds that a stage may take for one micro-batch; groups that need more for one layer
            are spare.

    Returns:
        None if there are fewer groups than pipelines.
    """
    remembered: dict[int, int] = {}
    for options in nodes:
        if id(options) not in remembered:
            remembered[id(options)] = _plain(instance, options, tp_degree, stage_s)
    chosen = [remembered[id(options)] for options in nodes]
    kinds = [kind for options, option in zip(nodes, chosen, strict=True) for kind in options[option].kinds]
    useful = [kind for kind in kinds if instance.kinds[kind].layer_s <= stage_s]
    idle = [kind for kind in kinds if instance.kinds[kind].layer_s > stage_s]
    if len(useful) < dp_degree:
        useful, idle = kinds, []
    if len(useful) < dp_degree:
        return None
    pipelines, spare = deal(instance, useful, dp_degree)
    return Division(pipelines, tuple(sorted((*spare, *idle))), chosen)


def deal(instance: Instance, kinds: Sequence[int], dp_degree: int) -> tuple[list[Kinds], Kinds]:
    """Divides groups into pipelines of nearly equal speed; what does not fit in their depth is spare."""
    pipelines: list[list[int]] = [[] for _ in range(dp_degree)]
    spare: list[int] = []
    waiting = [(0.0, place) for place in range(dp_degree)]
    for kind in sorted(kinds, key=lambda kind: (instance.kinds[kind].layer_s, kind)):
        if not waiting:
            spare.append(kind)
            continue
        speed, place = heappop(waiting)
        pipelines[place].append(kind)
        if len(pipelines[place]) < instance.max_depth:
            heappush(waiting, (speed + 1 / instance.kinds[kind].layer_s, place))
    return [tuple(sorted(part)) for part in pipelines], tuple(sorted(spare))


def _plain(instance: Instance, options: Sequence[Grouping], tp_degree: int, stage_s: float) -> int:
    """The option that does most whole layers in a stage's time, with a preference for groups of `tp_degree`."""

    def worth(option: int) -> tuple[float, int]:
        grouping = options[option]
        if any(size > tp_degree for size in grouping.sizes):
            return (-1.0, -option)
        layers = sum(int(stage_s / instance.kinds[kind].layer_s + 1e-9) for kind in grouping.kinds)
        plain = sum(size for size in grouping.sizes if size == tp_degree) / max(1, sum(grouping.sizes))
        return (layers * (1 + _PLAIN * plain), -option)

    return max(range(len(options)), key=worth)
