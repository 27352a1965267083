"""What a plan costs: the exact event model of one training step.

Pure arithmetic over a profile and rates; the search ranks plans with it, the controller predicts
with it, the dashboard draws its timeline. It does not check plans (see `planner.validate`) and does
not know memory.

Source: design of the project, section 5 (cost); 1F1B as in Narayanan et al., "Memory-Efficient
Pipeline-Parallel DNN Training" (PipeDream-Flush). The textbook `(m - 1) * max t + sum t`
over-estimates plans whose early stage is the slow one, so the events are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from planner.errors import SpecError
from planner.plan import Pipeline, Plan
from planner.spec import ModelProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One forward or backward of one micro-batch on one stage; seconds since the step began."""

    pipeline_index: int
    stage_index: int
    kind: Literal["forward", "backward"]
    micro_batch: int
    start_s: float
    end_s: float

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline_index,
            "stage": self.stage_index,
            "kind": self.kind,
            "micro_batch": self.micro_batch,
            "start_s": self.start_s,
            "end_s": self.end_s,
        }


def layer_s(profile: ModelProfile, *, micro_batch_size: int, tp_degree: int, rate: float) -> float:
    """Seconds of one layer, forward + backward, for one micro-batch on a group.

    Args:
        rate: the largest rate in the group (1 = healthy); it slows compute, not collectives.

    Raises:
        SpecError: the profile has no such micro-batch size or TP degree.
    """
    compute_s = _entry(profile.compute_s, micro_batch_size, tp_degree)
    return compute_s * rate + profile.comm_s[micro_batch_size][tp_degree]


def stage_s(
    profile: ModelProfile,
    *,
    micro_batch_size: int,
    tp_degree: int,
    rate: float,
    num_layers: int,
    is_first: bool,
    is_last: bool,
) -> float:
    """Seconds of a stage for one micro-batch, forward + backward, with embedding and head.

    Raises:
        SpecError: the profile has no such micro-batch size or TP degree.
    """
    seconds = num_layers * layer_s(profile, micro_batch_size=micro_batch_size, tp_degree=tp_degree, rate=rate)
    if math.isinf(rate):
        return math.inf
    if is_first:
        seconds += profile.embed_s[micro_batch_size][tp_degree] * rate
    if is_last:
        seconds += profile.head_s[micro_batch_size][tp_degree] * rate
    return seconds


def pipeline_makespan_s(
    stage_seconds: Sequence[float], num_micro_batches: int, *, forward_share: float, send_s: float
) -> float:
    """Exact makespan of 1F1B over stages of different speed.

    Stage j of S runs min(m, S - j) forwards, then alternates one backward and one forward, then
    drains. A forward waits for the stage before it, a backward for the stage behind it, each `send_s`
    after its end; a stage runs one thing at a time; sending costs a stage nothing.

    Args:
        stage_seconds: forward + backward seconds of each stage for one micro-batch, in stage order.
        num_micro_batches: m; no need to be at least S here.
        forward_share: share of a stage's time that is forward.
        send_s: latency between stages, one way.

    Returns:
        Seconds from the first forward of stage 0 to the last backward of stage 0.
    """
    forward = [seconds * forward_share for seconds in stage_seconds]
    backward = [seconds - ahead for seconds, ahead in zip(stage_seconds, forward, strict=True)]
    return _run(forward, backward, num_micro_batches, send_s, None)


def plan_step_s(plan: Plan, profile: ModelProfile, rates: Mapping[int, float]) -> float:
    """Predicted seconds of one step: the slowest pipeline plus gradient sync and optimizer.

    Args:
        rates: straggling rate by device; devices not named are healthy. A plan that uses a device
            of rate inf takes inf.

    Raises:
        SpecError: the profile lacks the plan's micro-batch size or a TP degree.
    """
    slowest = 0.0
    for pipeline in plan.pipelines:
        seconds = _stage_seconds(plan, pipeline, profile, rates)
        if math.inf in seconds:
            return math.inf
        slowest = max(
            slowest,
            pipeline_makespan_s(
                seconds,
                pipeline.num_micro_batches,
                forward_share=profile.forward_share,
                send_s=profile.send_s,
            ),
        )
    return slowest + profile.sync_s


def timeline(plan: Plan, profile: ModelProfile, rates: Mapping[int, float]) -> list[Event]:
    """Every forward and backward of one step with its start and end, for charts.

    Pipelines with a failed device (rate inf) have no events.

    Raises:
        SpecError: the profile lacks the plan's micro-batch size or a TP degree.
    """
    events: list[Event] = []
    for index, pipeline in enumerate(plan.pipelines):
        seconds = _stage_seconds(plan, pipeline, profile, rates)
        if math.inf in seconds:
            continue
        forward = [value * profile.forward_share for value in seconds]
        backward = [value - ahead for value, ahead in zip(seconds, forward, strict=True)]

        def record(
            stage: int, kind: Literal["forward", "backward"], number: int, start: float, end: float, at: int = index
        ) -> None:
            events.append(
                Event(pipeline_index=at, stage_index=stage, kind=kind, micro_batch=number, start_s=start, end_s=end)
            )

        _run(forward, backward, pipeline.num_micro_batches, profile.send_s, record)
    return events


def capacity_bound_s(healthy_s: float, rates: Mapping[int, float] | Iterable[float]) -> float:
    """The step time if all capacity is used as well as by the healthy plan: healthy * N / sum(1 / x).

    No strict bound. Layers and micro-batches are whole, so the healthy plan does not divide the work perfectly: a plan
    with fewer, larger stages may divide it better and come out below (by up to about 4 % in what was measured, by more
    where layers are few). So may a plan whose step is partly time that no rate slows (collectives, gradient sync).

    Args:
        healthy_s: step seconds with every device healthy; of the best plan found, where there was a search.
        rates: rates of all N devices (also by device); inf adds no capacity.

    Returns:
        Seconds; inf if every device has failed.
    """
    values = list(rates.values()) if isinstance(rates, Mapping) else list(rates)
    capacity = sum(1 / rate for rate in values)
    return healthy_s * len(values) / capacity if capacity > 0 else math.inf


_Record = Callable[[int, Literal["forward", "backward"], int, float, float], None]


def _run(
    forward: Sequence[float], backward: Sequence[float], num_micro_batches: int, send_s: float, record: _Record | None
) -> float:
    """The event recurrence. Round r holds forward r of every stage, then backward r - (S - 1 - j) of stage j.

    In this order each event comes after all that it waits for, and each stage sees its own events in
    the order in which 1F1B runs them.
    """
    num_stages = len(forward)
    free = [0.0] * num_stages  # when the stage has finished its last event
    arrival = [0.0] * num_stages  # when the gradient for the stage's next backward is there
    for turn in range(num_micro_batches + num_stages - 1):
        if turn < num_micro_batches:
            ready = 0.0
            for stage in range(num_stages):
                start = free[stage]
                if start < ready:  # twice as fast as max(), and this loop is where the search spends its time
                    start = ready
                end = start + forward[stage]
                free[stage] = end
                ready = end + send_s
                if record is not None:
                    record(stage, "forward", turn, start, end)
        low = max(0, num_stages - 1 - turn)
        high = min(num_stages, num_micro_batches + num_stages - 1 - turn)
        for stage in range(low, high):
            start = free[stage]
            if start < arrival[stage]:
                start = arrival[stage]
            end = start + backward[stage]
            free[stage] = end
            if stage:
                arrival[stage - 1] = end + send_s
            if record is not None:
                record(stage, "backward", turn - (num_stages - 1 - stage), start, end)
    return max(free, default=0.0)


def _stage_seconds(plan: Plan, pipeline: Pipeline, profile: ModelProfile, rates: Mapping[int, float]) -> list[float]:
    last = len(pipeline.stages) - 1
    return [
        stage_s(
            profile,
            micro_batch_size=plan.micro_batch_size,
            tp_degree=stage.tp_degree,
            rate=max(rates.get(device, 1.0) for device in stage.devices),
            num_layers=stage.num_layers,
            is_first=index == 0,
            is_last=index == last,
        )
        for index, stage in enumerate(pipeline.stages)
    ]


def _entry(table: Mapping[int, Mapping[int, float]], micro_batch_size: int, tp_degree: int) -> float:
    row = table.get(micro_batch_size)
    if row is None:
        raise SpecError(f"micro-batch size must be one of {sorted(table)}, given {micro_batch_size}")
    if tp_degree not in row:
        raise SpecError(f"TP degree must be one of {sorted(row)}, given {tp_degree}")
    return row[tp_degree]
