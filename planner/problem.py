"""A planning problem as the search sees it: live devices, one instance per micro-batch size.

Built once per solve from cluster, profile, train spec and rates; read by every part of the search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.kinds import Instance
from planner.placement import live_devices
from planner.spec import ClusterSpec, ModelProfile, TrainSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What to plan for.

    Args:
        nodes: `(rate, memory_bytes)` of every node's live devices, slowest first; nodes may be empty.
        instances: one for each micro-batch size that train spec and profile share, smallest first.
        group_sizes: TP degrees allowed, by instance.
        dp_range: fewest and most pipelines.
    """

    cluster: ClusterSpec
    profile: ModelProfile
    train: TrainSpec
    rates: Mapping[int, float]
    nodes: tuple[tuple[tuple[float, float], ...], ...]
    instances: tuple[Instance, ...]
    group_sizes: tuple[tuple[int, ...], ...]
    dp_range: tuple[int, int]

    @property
    def num_live(self) -> int:
        return sum(len(node) for node in self.nodes)


def problem_of(cluster: ClusterSpec, profile: ModelProfile, train: TrainSpec, rates: Mapping[int, float]) -> Problem:
    """Puts the inputs of a solve into the form that the search uses.

    Args:
        rates: rate of every device of the cluster.
    """
    live = [rates[device] for device in cluster.devices if math.isfinite(rates[device])]
    sizes = sorted({size for size in train.micro_batch_sizes if size in profile.compute_s})
    return Problem(
        cluster=cluster,
        profile=profile,
        train=train,
        rates=rates,
        nodes=tuple(
            tuple((rates[device], cluster.memory_bytes[device]) for device in live_devices(node, rates, cluster))
            for node in cluster.nodes
        ),
        instances=tuple(
            Instance(profile, micro_batch_size=size, num_micro_batches=train.global_batch // size, rates=live)
            for size in sizes
        ),
        group_sizes=tuple(
            tuple(degree for degree in profile.tp_degrees(size) if degree <= train.max_tp) for size in sizes
        ),
        dp_range=train.dp_range,
    )


def folded(problem: Problem, tolerance: float) -> Problem:
    """The same problem with nearly equal rates made equal: fewer kinds, so a much faster search.

    Rates are taken in ascending order; all within `tolerance` (relative) of the first of a class count
    as the largest among them. So what is planned here takes at most as long in truth.
    """
    live = sorted({rate for node in problem.nodes for rate, _ in node})
    classes: list[list[float]] = []
    for rate in live:
        if classes and rate <= classes[-1][0] * (1 + tolerance):
            classes[-1].append(rate)
        else:
            classes.append([rate])
    stands_for = {rate: members[-1] for members in classes for rate in members}
    rates = [stands_for[rate] for node in problem.nodes for rate, _ in node]
    return replace(
        problem,
        nodes=tuple(tuple((stands_for[rate], memory) for rate, memory in node) for node in problem.nodes),
        instances=tuple(instance.with_rates(rates) for instance in problem.instances),
    )
