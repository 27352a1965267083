"""A trace in the planner's terms: the plan that ran, the profile it reveals, the cluster, and a better plan.

A trace does not say how many layers a stage holds, what fits into memory, or what other tensor-parallel
degrees would cost. So: a stage counts as `layers_per_stage` layers; no device may hold more than
`ROOM` times what an even division gives it; groups keep their size and there are at most as many pipelines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.plan import Pipeline, Plan, Stage
from planner.solve import SolveResult, solve
from planner.spec import ClusterSpec, ModelProfile, TrainSpec
from planner.trace import Trace
from planner.trace_cause import TraceVerdict, stage_reference_s

ROOM = 1.5
_MOST_PER_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceModel:
    """What the planner is told about a traced job.

    Args:
        plan: the plan that ran.
        rates: of the devices that are blamed; all others are healthy.
    """

    plan: Plan
    profile: ModelProfile
    cluster: ClusterSpec
    train: TrainSpec
    rates: Mapping[int, float]


def trace_model(trace: Trace, verdict: TraceVerdict, *, layers_per_stage: int = 8) -> TraceModel:
    """Builds the planner's input.

    Args:
        layers_per_stage: layers of a stage of usual weight, at least 1.
    """
    shape = trace.shape
    stages = [float(value) for value in stage_reference_s(trace)]
    inner = stages[1:-1] or [min(stages)]
    usual = float(np.median(inner))
    layer_s = usual / layers_per_stage
    layers = [_num_layers(stages, index, usual, layers_per_stage) for index in range(shape.pp)]
    extra = [seconds - count * layer_s for seconds, count in zip(stages, layers, strict=True)]
    size, tp, num_layers = 1, shape.tp, sum(layers)
    forward = float(np.median(trace.forward) / (np.median(trace.forward) + np.median(trace.backward)))
    profile = ModelProfile(
        num_layers=num_layers,
        compute_s={size: {tp: layer_s}},
        comm_s={size: {tp: 0.0}},
        forward_share=forward,
        embed_s={size: {tp: max(0.0, extra[0]) if shape.pp > 1 else 0.0}},
        head_s={size: {tp: max(0.0, extra[-1]) if shape.pp > 1 else 0.0}},
        send_s=trace.send_s,
        sync_s=float(np.median(trace.sync_s)),
        max_tp=tp,
        layer_bytes={size: (1.0,) * (shape.dp * shape.pp)},
        first_extra_bytes=0.0,
        last_extra_bytes=0.0,
        reserve_bytes=0.0,
        provenance="measured: times from a trace; memory assumed",
    )
    room = float(max(*layers, math.ceil(ROOM * layers_per_stage)))
    per_node = math.gcd(shape.num_devices, _MOST_PER_NODE)
    nodes = tuple(tuple(range(first, first + per_node)) for first in range(0, shape.num_devices, per_node))
    batch = shape.dp * trace.num_micro_batches * size
    return TraceModel(
        plan=_plan(trace, layers),
        profile=profile,
        cluster=ClusterSpec(nodes=nodes, memory_bytes=dict.fromkeys(range(shape.num_devices), room)),
        train=TrainSpec(global_batch=batch, micro_batch_sizes=(size,), dp_range=(1, shape.dp), max_tp=tp),
        rates={device: worker.rate for worker in verdict.slow for device in worker.devices},
    )


def better_plan(
    model: TraceModel, *, seed: int = 0, time_limit_s: float = 30.0, clock: Callable[[], float] | None = None
) -> SolveResult:
    """The plan that would have been used, against the one that ran."""
    return solve(
        cluster=model.cluster,
        profile=model.profile,
        train=model.train,
        rates=model.rates,
        current=model.plan,
        seed=seed,
        time_limit_s=time_limit_s,
        clock=clock,
    )


def _num_layers(stages: list[float], index: int, usual: float, layers_per_stage: int) -> int:
    """Layers of a stage by its weight; what the first and the last weigh more is embedding and head."""
    is_end = index in (0, len(stages) - 1)
    if is_end and stages[index] >= usual:
        return layers_per_stage
    return max(1, round(layers_per_stage * stages[index] / usual))


def _plan(trace: Trace, layers: list[int]) -> Plan:
    starts = [sum(layers[:index]) for index in range(len(layers) + 1)]
    pipelines = tuple(
        Pipeline(
            num_micro_batches=trace.num_micro_batches,
            stages=tuple(
                Stage(devices=trace.group(dp, stage), layers=(starts[stage], starts[stage + 1]))
                for stage in range(trace.shape.pp)
            ),
        )
        for dp in range(trace.shape.dp)
    )
    return Plan(num_layers=sum(layers), micro_batch_size=1, pipelines=pipelines)
