"""The plan map: pipelines, stages and devices of a plan, drawn to scale.

Width is layers, height is TP degree (one strip a device), shade is how busy the stage is. Devices
keep the colour that they have in the grid. In a diff the layers that a device gains or gives away
are outlined. Pure drawing: a plan in, HTML out; shown by `picture`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from app.dashboard import quantities as q
from app.dashboard.device_grid import rate_style
from planner import cost
from planner.diff import DeviceChange
from planner.errors import PlannerError
from planner.plan import Pipeline, Plan, Stage
from planner.spec import ModelProfile

Busy = dict[tuple[int, int], float]
"""Share of the step in which a stage computes, by (pipeline, stage)."""


def plan_map(
    plan: Plan,
    *,
    rates: Mapping[int, float],
    busy: Busy | None = None,
    outlined: Mapping[int, DeviceChange] | None = None,
    side: str = "new",
) -> str:
    """The map as HTML.

    Args:
        rates: straggling rate by device; devices not named are drawn healthy.
        busy: from `busy_shares`; None where no profile is known (no shade, no percentage).
        outlined: changes by device, for a diff.
        side: `old` outlines the layers that leave, `new` those that arrive.
    """
    num_rows = sum(max((stage.tp_degree for stage in pipeline.stages), default=1) for pipeline in plan.pipelines)
    size = "roomy" if num_rows <= 10 else "tight" if num_rows <= 24 else "tiny"
    rows = [
        _pipeline(plan, pipeline, index, rates, busy or {}, outlined or {}, side)
        for index, pipeline in enumerate(plan.pipelines)
    ]
    return (
        f'<div class="map {size}" role="group" aria-label="{escape(summary(plan))}">{"".join(rows)}{_spare(plan)}</div>'
    )


def busy_shares(plan: Plan, profile: ModelProfile | None, rates: Mapping[int, float]) -> Busy | None:
    """How busy each stage is in one predicted step, 0 to 1; None without a usable profile."""
    if profile is None:
        return None
    try:
        step_s = cost.plan_step_s(plan, profile, rates)
        if not math.isfinite(step_s) or step_s <= 0:
            return None
        return {
            (pipeline_index, stage_index): min(
                1.0,
                plan.pipelines[pipeline_index].num_micro_batches
                * cost.stage_s(
                    profile,
                    micro_batch_size=plan.micro_batch_size,
                    tp_degree=stage.tp_degree,
                    rate=max(rates.get(device, 1.0) for device in stage.devices),
                    num_layers=stage.num_layers,
                    is_first=stage_index == 0,
                    is_last=stage_index == len(plan.pipelines[pipeline_index].stages) - 1,
                )
                / step_s,
            )
            for pipeline_index, stage_index, stage in plan.places()
        }
    except PlannerError:
        return None


def summary(plan: Plan) -> str:
    """A plan in one line: `2 pipelines, 8 devices, 20 micro-batches of 1, 1 standby`."""
    parts = [
        f"{len(plan.pipelines)} pipeline{'s' if len(plan.pipelines) != 1 else ''}",
        f"{len(plan.active)} device{'s' if len(plan.active) != 1 else ''}",
        f"{plan.num_micro_batches} micro-batches of {plan.micro_batch_size}",
    ]
    if plan.standby:
        parts.append(f"{len(plan.standby)} standby")
    if plan.failed:
        parts.append(f"{len(plan.failed)} failed")
    return ", ".join(parts)


def place(plan: Plan, device: int) -> tuple[str, str]:
    """A device's role in the plan (active, standby, failed) and its place in words."""
    for pipeline_index, stage_index, stage in plan.places():
        if device in stage.devices:
            return "active", f"pipeline {pipeline_index}, stage {stage_index}, {_layers(stage)}, TP {stage.tp_degree}"
    if device in plan.failed:
        return "failed", "out of the plan"
    return "standby", "standby"


def _pipeline(
    plan: Plan,
    pipeline: Pipeline,
    index: int,
    rates: Mapping[int, float],
    busy: Busy,
    outlined: Mapping[int, DeviceChange],
    side: str,
) -> str:
    stages = "".join(
        _stage(plan, stage, f"pipeline {index}, stage {number}", rates, busy.get((index, number)), outlined, side)
        for number, stage in enumerate(pipeline.stages)
    )
    count = pipeline.num_micro_batches
    tip = f"{count} of {plan.num_micro_batches} micro-batches"
    return (
        f'<div class="pipeline"><span class="pipeline-name" data-tip="{tip}">'
        f"<b>pipeline {index}</b>"
        f"<span>{count} micro-batch{'es' if count != 1 else ''}</span></span>"
        f'<div class="stages">{stages}</div></div>'
    )


def _stage(
    plan: Plan,
    stage: Stage,
    name: str,
    rates: Mapping[int, float],
    share: float | None,
    outlined: Mapping[int, DeviceChange],
    side: str,
) -> str:
    busy = "" if share is None else f" · busy {q.percent(share)} of the step"
    count = f"{stage.num_layers} layer{'s' if stage.num_layers != 1 else ''}"
    tip = (
        f"{name}: {_layers(stage)} ({count}), TP {stage.tp_degree}, devices {', '.join(map(str, stage.devices))}{busy}"
    )
    shade = "" if share is None else f";--busy:{100 * share:.0f}%"
    percent = "" if share is None else f'<span class="stage-busy">{q.percent(share)}</span>'
    members = "".join(_member(device, stage, rates, outlined.get(device), side) for device in stage.devices)
    return (
        f'<div class="stage" style="width:{100 * stage.num_layers / plan.num_layers:.3f}%{shade}">'
        f'<div class="stage-head" data-tip="{escape(tip, quote=True)}" tabindex="0">'
        f'<span class="stage-layers">{_layers(stage)}</span>{percent}</div>{members}</div>'
    )


def _member(device: int, stage: Stage, rates: Mapping[int, float], change: DeviceChange | None, side: str) -> str:
    rate = rates.get(device, 1.0)
    style = rate_style(rate)
    kind = "slow" if style else "failed" if math.isinf(rate) else "silent" if math.isnan(rate) else ""
    rate_text = f"<span>{q.rate(rate)}</span>" if kind else ""
    spans = () if change is None else change.gained if side == "new" else change.lost
    sign = "+" if side == "new" else "\u2212"
    marks = "".join(
        f'<i class="moved {side}" style="left:{100 * (first - stage.layers[0]) / stage.num_layers:.2f}%;'
        f'width:{100 * (stop - first) / stage.num_layers:.2f}%"><u>{sign}{stop - first}</u></i>'
        for first, stop in spans
    )
    tip = f"device {device}: {q.rate(rate)}" + (f" · {_moved(change, side)}" if spans and change else "")
    return (
        f'<div class="member {kind}" style="{style}" data-pick="{device}" data-tip="{escape(tip, quote=True)}">'
        f"<b>{device}</b>{rate_text}{marks}</div>"
    )


def _moved(change: DeviceChange, side: str) -> str:
    spans = change.gained if side == "new" else change.lost
    count = sum(stop - first for first, stop in spans)
    size = f", about {q.num_bytes(change.moved_bytes)}" if side == "new" and change.moved_bytes else ""
    return f"{'receives' if side == 'new' else 'gives away'} {count} layer{'s' if count != 1 else ''}{size}"


def _spare(plan: Plan) -> str:
    groups = [("standby", plan.standby), ("failed", plan.failed)]
    return "".join(
        f'<div class="pipeline spare"><span class="pipeline-name"><b>{kind}</b></span><div class="spares">'
        + "".join(
            f'<span class="spare-device {kind}" data-pick="{device}" data-tip="device {device}: {kind}">{device}</span>'
            for device in devices
        )
        + "</div></div>"
        for kind, devices in groups
        if devices
    )


def _layers(stage: Stage) -> str:
    first, last = stage.layers[0], stage.layers[1] - 1
    return f"layer {first}" if first == last else f"layers {first}{q.DASH}{last}"
