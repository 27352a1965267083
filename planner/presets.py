"""Named clusters and models for planning offline, without a run.

`demo` is the job that a run configuration without any settings describes; the others are the clusters and
models of the paper's evaluation, with the layer-time coefficients and memory tables that its released
planner carries. Numbers are given, not measured here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import SpecError
from planner.spec import ClusterSpec, ModelProfile, TrainSpec

_MB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class _PaperModel:
    """One of the paper's models. Memory in MB of each device of a `max_tp` group.

    Args:
        layer_times: of one layer by TP degree, relative to that of `max_tp`.
        layer_mb: of one layer by micro-batches in flight.
        ends_mb: more on the first and on the last stage.
    """

    num_layers: int
    max_tp: int
    dp: int
    layer_times: Mapping[int, float]
    layer_mb: tuple[float, ...]
    ends_mb: float
    reserve_mb: float


_PAPER = {
    "32b": _PaperModel(
        num_layers=60,
        max_tp=2,
        dp=4,
        layer_times={2: 1.0, 1: 2.0},
        layer_mb=(3129.95, 3641.99, 4124.24, 4608.02),
        ends_mb=1200,
        reserve_mb=5500,
    ),
    "70b": _PaperModel(
        num_layers=80,
        max_tp=8,
        dp=2,
        layer_times={8: 1.0, 4: 1.9, 2: 3.66, 1: 7.22},
        layer_mb=(1647, 1769, 1933, 2110, 2295, 2485, 2685, 2895),
        ends_mb=600,
        reserve_mb=4700,
    ),
    "110b": _PaperModel(
        num_layers=80,
        max_tp=8,
        dp=2,
        layer_times={8: 1.0, 4: 1.91, 2: 3.77, 1: 7.35},
        layer_mb=(2438, 2597, 2830, 3068, 3338, 3630, 3930, 4240),
        ends_mb=500,
        reserve_mb=4900,
    ),
}
CLUSTERS: tuple[str, ...] = ("demo", "32", "64")
MODELS: tuple[str, ...] = ("demo", *_PAPER)


def cluster(name: str) -> ClusterSpec:
    """A named cluster: `demo` (2 nodes of 4), `32` and `64` (nodes of 8 devices with 77 GB usable).

    Raises:
        SpecError: no such name.
    """
    if name == "demo":
        return uniform_cluster(2, 4, memory_bytes=12e6)
    if name in CLUSTERS:
        return uniform_cluster(int(name) // 8, 8, memory_bytes=77_156 * _MB)
    raise SpecError(f"cluster must be one of {list(CLUSTERS)}, given {name!r}")


def model(name: str) -> tuple[ModelProfile, TrainSpec]:
    """A named model with the training settings that belong to it.

    Raises:
        SpecError: no such name.
    """
    if name == "demo":
        return _demo()
    if name not in _PAPER:
        raise SpecError(f"model must be one of {list(MODELS)}, given {name!r}")
    paper = _PAPER[name]
    nothing = dict.fromkeys(paper.layer_times, 0.0)
    profile = ModelProfile(
        num_layers=paper.num_layers,
        compute_s={1: paper.layer_times},
        comm_s={1: nothing},
        forward_share=1 / 3,
        embed_s={1: nothing},
        head_s={1: nothing},
        send_s=0.0,
        sync_s=0.0,
        max_tp=paper.max_tp,
        layer_bytes={1: tuple(value * _MB for value in paper.layer_mb)},
        first_extra_bytes=paper.ends_mb * _MB,
        last_extra_bytes=paper.ends_mb * _MB,
        reserve_bytes=paper.reserve_mb * _MB,
    )
    return profile, TrainSpec(
        global_batch=64, micro_batch_sizes=(1,), dp_range=(paper.dp, paper.dp), max_tp=paper.max_tp
    )


def uniform_cluster(num_nodes: int, devices_per_node: int, *, memory_bytes: float) -> ClusterSpec:
    """Nodes of equal size; device ids count from 0, node by node."""
    nodes = tuple(tuple(range(node * devices_per_node, (node + 1) * devices_per_node)) for node in range(num_nodes))
    return ClusterSpec(nodes=nodes, memory_bytes={device: memory_bytes for node in nodes for device in node})


def _demo() -> tuple[ModelProfile, TrainSpec]:
    layer_s, head_layers, degrees = 0.04, 0.25, (1, 2, 4)

    def table(by_degree: Mapping[int, float]) -> dict[int, dict[int, float]]:
        return {1: dict(by_degree)}

    profile = ModelProfile(
        num_layers=16,
        compute_s=table({degree: layer_s / degree for degree in degrees}),
        comm_s=table({degree: 0.0 if degree == 1 else 0.004 for degree in degrees}),
        forward_share=1 / 3,
        embed_s=table(dict.fromkeys(degrees, 0.0005)),
        head_s=table({degree: head_layers * layer_s / degree for degree in degrees}),
        send_s=0.002,
        sync_s=0.06,
        max_tp=4,
        layer_bytes={1: tuple(0.4 * _MB + 0.1 * _MB * number for number in range(16))},
        first_extra_bytes=0.3 * _MB,
        last_extra_bytes=0.3 * _MB,
        reserve_bytes=0.0,
    )
    return profile, TrainSpec(global_batch=16, micro_batch_sizes=(1,), dp_range=(1, 4), max_tp=4)
