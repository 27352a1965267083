"""The rules a plan must keep, checked against a cluster and, if given, a model profile.

Whoever receives a plan (planner, store, engine, command line) calls this before acting on it. It
shares no code with the search, so that a mistake there cannot hide here. It does not judge whether
a plan is a good one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from planner.errors import PlanError
from planner.plan import GROUP_SIZES, Pipeline, Plan, Stage
from planner.spec import ClusterSpec, ModelProfile


def violations(
    plan: Plan,
    *,
    cluster: ClusterSpec,
    num_layers: int,
    global_batch: int,
    max_tp: int | None = None,
    profile: ModelProfile | None = None,
) -> list[str]:
    """Every rule that the plan breaks, one sentence each, with what was expected and what is given.

    Args:
        plan: the plan to check.
        cluster: the devices that the plan must account for, each exactly once.
        num_layers: decoder layers of the model.
        global_batch: sequences of a step.
        max_tp: largest TP degree allowed; None allows every group size.
        profile: costs of the model; if given, its micro-batch sizes, TP degrees and memory count too.

    Returns:
        An empty list if the plan keeps every rule.
    """
    return [
        *_batch(plan, global_batch),
        *_layers(plan, num_layers),
        *_groups(plan, cluster, max_tp),
        *_devices(plan, cluster),
        *(_costs(plan, cluster, profile) if profile is not None else ()),
    ]


def check(
    plan: Plan,
    *,
    cluster: ClusterSpec,
    num_layers: int,
    global_batch: int,
    max_tp: int | None = None,
    profile: ModelProfile | None = None,
) -> None:
    """Like `violations`, for callers that cannot go on with a broken plan.

    Raises:
        PlanError: at least one rule is broken; it carries all of them.
    """
    found = violations(
        plan, cluster=cluster, num_layers=num_layers, global_batch=global_batch, max_tp=max_tp, profile=profile
    )
    if found:
        raise PlanError(found)


def memory_by_device(plan: Plan, profile: ModelProfile) -> dict[int, float]:
    """Bytes that the plan needs on every active device, reserve included, as `violations` counts them.

    Empty for a micro-batch size that the profile does not know; inf for a pipeline deeper than its memory table.
    """
    table = profile.layer_bytes.get(plan.micro_batch_size)
    if table is None:
        return {}
    return {
        device: _stage_bytes(pipeline, number, table, profile)
        for pipeline in plan.pipelines
        for number, stage in enumerate(pipeline.stages)
        for device in stage.devices
    }


def _batch(plan: Plan, global_batch: int) -> Iterator[str]:
    if not plan.pipelines:
        yield "a plan needs at least 1 pipeline, given 0"
    if plan.micro_batch_size < 1:
        yield f"micro_batch_size must be at least 1, given {plan.micro_batch_size}"
    for index, pipeline in enumerate(plan.pipelines):
        stages, count = len(pipeline.stages), pipeline.num_micro_batches
        if count < max(1, stages):
            yield f"pipeline {index} needs at least as many micro-batches as stages ({stages}), given {count}"
    total = plan.num_micro_batches * plan.micro_batch_size
    if total != global_batch:
        yield (
            f"micro-batches x micro_batch_size must be the global batch {global_batch}, "
            f"given {plan.num_micro_batches} x {plan.micro_batch_size} = {total}"
        )


def _layers(plan: Plan, num_layers: int) -> Iterator[str]:
    if plan.num_layers != num_layers:
        yield f"num_layers must be {num_layers}, given {plan.num_layers}"
    for index, pipeline in enumerate(plan.pipelines):
        if not pipeline.stages:
            yield f"pipeline {index} needs at least 1 stage, given 0"
            continue
        expected = 0
        for number, stage in enumerate(pipeline.stages):
            first, stop = stage.layers
            if first != expected:
                yield f"pipeline {index} stage {number} must start at layer {expected}, given {first}"
            if stop <= first:
                yield f"pipeline {index} stage {number} needs at least 1 layer, given [{first}, {stop})"
            expected = stop
        if expected != num_layers:
            yield f"pipeline {index} must end at layer {num_layers}, given {expected}"


def _groups(plan: Plan, cluster: ClusterSpec, max_tp: int | None) -> Iterator[str]:
    nodes = {device: index for index, node in enumerate(cluster.nodes) for device in node}
    allowed = [size for size in GROUP_SIZES if max_tp is None or size <= max_tp]
    for pipeline_index, stage_index, stage in plan.places():
        where = f"pipeline {pipeline_index} stage {stage_index}"
        if stage.tp_degree not in allowed:
            yield f"{where} must have a group of {allowed} devices, given {list(stage.devices)}"
        on = sorted({nodes[device] for device in stage.devices if device in nodes})
        if len(on) > 1:
            yield f"{where} must lie on one node, given devices {list(stage.devices)} on nodes {on}"


def _devices(plan: Plan, cluster: ClusterSpec) -> Iterator[str]:
    known = set(cluster.devices)
    counts = Counter((*plan.active, *plan.standby, *plan.failed))
    repeated = sorted(device for device, count in counts.items() if count > 1)
    if repeated:
        yield f"every device must have exactly one place, given several for {repeated}"
    unknown = sorted(set(counts) - known)
    if unknown:
        yield f"devices must be of the cluster {_ranges(known)}, given {unknown}"
    missing = sorted(known - set(counts))
    if missing:
        yield f"every device must be active, standby or failed, missing {missing}"


def _costs(plan: Plan, cluster: ClusterSpec, profile: ModelProfile) -> Iterator[str]:
    if plan.micro_batch_size not in profile.compute_s:
        yield (
            f"micro_batch_size must be one that the profile knows {sorted(profile.compute_s)}, "
            f"given {plan.micro_batch_size}"
        )
        return
    degrees = profile.tp_degrees(plan.micro_batch_size)
    for index, pipeline in enumerate(plan.pipelines):
        for number, stage in enumerate(pipeline.stages):
            where = f"pipeline {index} stage {number}"
            if stage.tp_degree not in degrees:
                yield f"{where} must have a TP degree that the profile knows {list(degrees)}, given {stage.tp_degree}"
            else:
                yield from _memory(plan, pipeline, number, stage, where, cluster, profile)


def _memory(
    plan: Plan, pipeline: Pipeline, number: int, stage: Stage, where: str, cluster: ClusterSpec, profile: ModelProfile
) -> Iterator[str]:
    table = profile.layer_bytes[plan.micro_batch_size]
    in_flight = min(pipeline.num_micro_batches, len(pipeline.stages) - number)
    if in_flight > len(table):
        yield f"{where} may hold at most {len(table)} micro-batches in flight (memory table), given {in_flight}"
        return
    needed = _stage_bytes(pipeline, number, table, profile)
    for device in stage.devices:
        available = cluster.memory_bytes.get(device)
        if available is not None and needed > available * (1 + 1e-12):
            yield (
                f"{where} needs {needed / 1e6:.1f} MB on every device "
                f"({stage.num_layers} layers, {in_flight} in flight), device {device} has {available / 1e6:.1f} MB"
            )


def _stage_bytes(pipeline: Pipeline, number: int, table: Sequence[float], profile: ModelProfile) -> float:
    """Bytes on each device of a stage; inf beyond the memory table."""
    stage = pipeline.stages[number]
    in_flight = min(pipeline.num_micro_batches, len(pipeline.stages) - number)
    if in_flight > len(table):
        return math.inf
    whole = table[max(in_flight, 1) - 1] * stage.num_layers
    if number == 0:
        whole += profile.first_extra_bytes
    if number == len(pipeline.stages) - 1:
        whole += profile.last_extra_bytes
    return whole * profile.max_tp / stage.tp_degree + profile.reserve_bytes


def _ranges(devices: set[int]) -> str:
    """`0..7` for consecutive ids, else the list."""
    low, high = min(devices), max(devices)
    return f"{low}..{high}" if len(devices) == high - low + 1 else str(sorted(devices))
