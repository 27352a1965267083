"""Random valid plans for property tests: any groups, orders, layers, micro-batches, standby devices."""

from __future__ import annotations

import random
from collections.abc import Sequence

from planner.plan import Pipeline, Plan, Stage


def random_plan(
    seed: int, *, nodes: Sequence[Sequence[int]], num_layers: int, num_micro_batches: int, max_tp: int, size: int = 1
) -> Plan:
    """A valid plan; equal seeds give equal plans. Any number of pipelines, of any lengths."""
    rng = random.Random(seed)
    groups, standby = _groups(rng, nodes, max_tp)
    rng.shuffle(groups)
    dp = rng.randint(1, min(len(groups), num_micro_batches))
    cuts = sorted(rng.sample(range(1, len(groups)), dp - 1))
    parts = [groups[first:stop] for first, stop in zip([0, *cuts], [*cuts, len(groups)], strict=True)]
    pipelines = []
    lengths = []
    for part in parts:
        most = max(1, min(len(part), num_layers, num_micro_batches // dp))
        standby += [device for group in part[most:] for device in group]
        lengths.append(most)
        bounds = [0, *sorted(rng.sample(range(1, num_layers), most - 1)), num_layers]
        pipelines.append(
            tuple(
                Stage(devices=tuple(group), layers=(bounds[index], bounds[index + 1]))
                for index, group in enumerate(part[:most])
            )
        )
    counts = list(lengths)
    for _ in range(num_micro_batches - sum(lengths)):
        counts[rng.randrange(dp)] += 1
    return Plan(
        num_layers=num_layers,
        micro_batch_size=size,
        pipelines=tuple(
            Pipeline(num_micro_batches=count, stages=stages) for count, stages in zip(counts, pipelines, strict=True)
        ),
        standby=tuple(sorted(standby)),
    )


def _groups(rng: random.Random, nodes: Sequence[Sequence[int]], max_tp: int) -> tuple[list[list[int]], list[int]]:
    groups: list[list[int]] = []
    standby: list[int] = []
    for node in nodes:
        devices = list(node)
        rng.shuffle(devices)
        while devices:
            degree = rng.choice([n for n in (1, 2, 4, 8) if n <= min(max_tp, len(devices))])
            group, devices = devices[:degree], devices[degree:]
            if rng.random() < 0.15:
                standby += group
            else:
                groups.append(group)
    if not groups:
        groups, standby = [[standby[0]]], standby[1:]
    return groups, standby
