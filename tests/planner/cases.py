"""Small planning problems for tests and bench: seeded random ones, and one tiny named instance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from hypothesis import Phase

from planner.presets import uniform_cluster
from planner.spec import ClusterSpec, ModelProfile, TrainSpec

SEARCHED = (Phase.explicit, Phase.reuse, Phase.generate)  # a failing search is not worth minutes of shrinking
_SHAPES = ((1, 2), (2, 2), (1, 4), (4, 1), (2, 3), (3, 2), (1, 6), (2, 4), (4, 2), (1, 8), (8, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The inputs of one solve."""

    cluster: ClusterSpec
    profile: ModelProfile
    train: TrainSpec
    rates: dict[int, float]


def tiny_profile(
    *, num_layers: int = 6, memory_table: tuple[float, ...] = (1.0,) * 8, **changes: object
) -> ModelProfile:
    """A profile with round numbers: a layer takes 1 s on one device, 0.5 s on two, 0.25 s on four."""
    degrees = {1: 1.0, 2: 0.5, 4: 0.25}
    nothing = dict.fromkeys(degrees, 0.0)
    fields: dict[str, object] = {
        "num_layers": num_layers,
        "compute_s": {1: degrees},
        "comm_s": {1: nothing},
        "forward_share": 0.5,
        "embed_s": {1: nothing},
        "head_s": {1: nothing},
        "send_s": 0.0,
        "sync_s": 0.0,
        "max_tp": 4,
        "layer_bytes": {1: memory_table},
        "first_extra_bytes": 0.0,
        "last_extra_bytes": 0.0,
        "reserve_bytes": 0.0,
    }
    return ModelProfile(**(fields | changes))  # type: ignore[arg-type]


def random_case(seed: int, *, max_devices: int = 8, max_layers: int = 6, max_micro_batches: int = 8) -> Case:
    """A random cluster, profile, train spec and rates, from roomy to infeasible."""
    draw = Random(seed)
    num_nodes, per_node = draw.choice([shape for shape in _SHAPES if shape[0] * shape[1] <= max_devices])
    num_layers = draw.randint(1, max_layers)
    degrees = draw.choice([(1, 2, 4), (1, 2), (1, 2, 4, 8), (2, 4), (1,)])
    sizes = draw.choice([(1,), (1, 2)])
    layer_s = 10 ** draw.uniform(-3, 1)
    efficiency = draw.uniform(0.75, 1)
    activation = draw.choice([0.0, 0.1, 0.5, 1.0])

    def table(share: float, *, by_degree: bool = True) -> dict[int, dict[int, float]]:
        return {size: {n: layer_s * size * share / (n if by_degree else 1) for n in degrees} for size in sizes}

    profile = ModelProfile(
        num_layers=num_layers,
        compute_s={
            size: {n: layer_s * size ** draw.uniform(0.8, 1) / n / efficiency ** math.log2(n) for n in degrees}
            for size in sizes
        },
        comm_s={
            size: {n: 0.0 if n == 1 else layer_s * size * draw.choice([0, 0.05, 0.2]) for n in degrees}
            for size in sizes
        },
        forward_share=draw.uniform(0.25, 0.5),
        embed_s=table(draw.choice([0, 0.1, 0.5])),
        head_s=table(draw.choice([0, 0.3, 1.5])),
        send_s=layer_s * draw.choice([0, 0.01, 0.1]),
        sync_s=layer_s * draw.choice([0, 1]),
        max_tp=max(degrees),
        layer_bytes={
            size: tuple(1 + activation * size * (k + 1) for k in range(draw.choice([4, 8]))) for size in sizes
        },
        first_extra_bytes=draw.choice([0.0, 0.5]),
        last_extra_bytes=draw.choice([0.0, 0.5]),
        reserve_bytes=draw.choice([0.0, 1.0]),
    )
    global_batch = draw.choice([4, 6, max_micro_batches])
    fair_share = num_layers * (1 + 2 * activation) * max(degrees) / (num_nodes * per_node)
    memory_bytes = fair_share * draw.choice([1.5, 2, 3, 6, 50]) + 2
    cluster = uniform_cluster(num_nodes, per_node, memory_bytes=memory_bytes)
    if draw.random() < 0.3:
        factors = [draw.choice([0.7, 1.0, 1.5]) for _ in range(num_nodes)]
        cluster = ClusterSpec(
            nodes=cluster.nodes,
            memory_bytes={d: memory_bytes * factors[i] for i, node in enumerate(cluster.nodes) for d in node},
        )
    return Case(
        cluster=cluster,
        profile=profile,
        train=TrainSpec(
            global_batch=global_batch,
            micro_batch_sizes=tuple(size for size in sizes if global_batch % size == 0),
            dp_range=(1, draw.choice([2, 4, 8])),
            max_tp=max(draw.choice(degrees), min(degrees)),
        ),
        rates=_rates(draw, num_nodes * per_node),
    )


def _rates(draw: Random, num_devices: int) -> dict[int, float]:
    style = draw.choice(["few", "few", "all", "noisy"])
    rates = {}
    for device in range(num_devices):
        if style == "few" and draw.random() < 0.35:
            rates[device] = draw.choice([1.2, 2.57, 3.75, 5.42, 12.53])
        elif style == "all":
            rates[device] = draw.uniform(1, 6)
        elif style == "noisy":
            rates[device] = draw.choice([1.0, draw.uniform(1, 1.2), draw.uniform(1, 13)])
        if draw.random() < 0.04:
            rates[device] = math.inf
    return rates
