"""A plan as text: one line a stage, with its layers drawn to scale.

pipeline 0, 9 micro-batches of 1
  devices 0 1       TP 2  layers  0-8   #########.......
  device  2         TP 1  layers  9-12  .........####...
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.plan import Plan, Stage

MOST_COLUMNS = 48


def plan_text(plan: Plan, rates: Mapping[int, float] | None = None) -> str:
    """The plan, several lines.

    Args:
        rates: straggling rates to write beside the devices that are not at 1.
    """
    rates = rates or {}
    names = {id(stage): _names(stage.devices, rates) for _, _, stage in plan.places()}
    width = max((len(name) for name in names.values()), default=0)
    lines = []
    for index, pipeline in enumerate(plan.pipelines):
        lines.append(f"pipeline {index}, {pipeline.num_micro_batches} micro-batches of {plan.micro_batch_size}")
        for stage in pipeline.stages:
            first, stop = stage.layers
            layers = f"layers {first:>2}-{stop - 1}"
            lines.append(
                f"  {names[id(stage)]:<{width}}  TP {stage.tp_degree}  {layers:<13} {_bar(stage, plan.num_layers)}"
            )
    for what, devices in (("standby", plan.standby), ("failed", plan.failed)):
        if devices:
            lines.append(f"{what}: {_names(devices, rates)}")
    return "\n".join(lines)


def _names(devices: tuple[int, ...], rates: Mapping[int, float]) -> str:
    shown = [f"{device} ({rates[device]:.3g}x)" if rates.get(device, 1.0) != 1 else str(device) for device in devices]
    return f"{'device' if len(devices) == 1 else 'devices'} {' '.join(shown)}"


def _bar(stage: Stage, num_layers: int) -> str:
    columns = min(num_layers, MOST_COLUMNS)
    first, stop = (round(edge * columns / num_layers) for edge in stage.layers)
    if first == stop:  # fewer layers than a column stands for: seen all the same
        first = min(first, columns - 1)
        stop = first + 1
    return "." * first + "#" * (stop - first) + "." * (columns - stop)
