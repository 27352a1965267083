"""Why rates changed: one slow device, a heavy stage, heavy data, or everyone at once.

Pure. `planner.detect` says which devices have left their level and asks here for the reason; only
`device` speaks about the hardware and may lead to a new plan. Peers are what tells the causes apart:

- `everyone`: all measured devices rose or fell together by one factor; no plan can gain from that.
- `data`: all devices that work on the same micro-batches rose together, by a factor that varies from
  step to step, or while the standby devices did not.
- `stage`: the devices of one stage index in every pipeline, and only these, are up since the plan began.
- `device`: anything else that lasts; this device is slow for equal work.

A device times its own compute only, so a slow member of a TP group raises its own rate, never its peers'.
This module does not decide what lasts (see `planner.detect`) and sees neither links nor silence.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from planner.plan import Plan

Cause = Literal["device", "stage", "data", "everyone", "link", "unknown"]


def causes(
    changed: Collection[int],
    *,
    ratios: Mapping[int, float],
    news: Mapping[int, float],
    recent: Sequence[Mapping[int, float]],
    from_start: Collection[int],
    plan: Plan,
    threshold: float,
    patience_steps: int,
) -> dict[int, Cause]:
    """The cause of each device's change; devices about which it is too early to tell are left out.

    Args:
        changed: devices whose change has lasted.
        ratios: running rate of every device over the rate that the plan assumed; NaN if unknown, inf if failed.
        news: running rate of every device over the level confirmed last.
        recent: rates over the plan's of single steps since the change began, oldest first.
        from_start: devices that have been up ever since the plan's first counted step.
        plan: the active plan.
        threshold: relative change that counts.
        patience_steps: steps that make a change last. Where a whole pipeline rises in step, slow devices
            are told from heavy data after twice as many.
    """
    known = {device: ratio for device, ratio in ratios.items() if math.isfinite(ratio)}
    found: dict[int, Cause] = {}
    early: set[int] = set()
    for device in _common(known, {device: news[device] for device in known}, threshold):
        found[device] = "data" if _fluctuates(known, recent, threshold) else "everyone"
    if not found:
        for members in _in_step(plan, known, recent, threshold):
            if _fluctuates(members, recent, threshold) or _is_idle_calm(plan, known, members, threshold):
                found.update(dict.fromkeys(members, "data"))
            elif len(recent) <= 2 * patience_steps:
                early |= members
    for members in _heavy_stages(plan, known, from_start, threshold):
        found.update(dict.fromkeys(members, "stage"))
    return {device: found.get(device, "device") for device in changed if device not in early}


def _common(ratios: Mapping[int, float], news: Mapping[int, float], threshold: float) -> set[int]:
    """The devices that moved together: all where none stands out, else those with the common change."""
    if len(ratios) < 2:
        return set()
    if max(ratios.values()) <= (1 + threshold) * min(ratios.values()):
        return set(ratios)
    least, most = min(news.values()), max(news.values())
    if least > 1 + threshold / 2:
        return {device for device, ratio in news.items() if ratio <= least * (1 + 2 * threshold)}
    if most < 1 - threshold / 2:
        return {device for device, ratio in news.items() if ratio >= most / (1 + 2 * threshold)}
    return set()


def _in_step(
    plan: Plan, ratios: Mapping[int, float], recent: Sequence[Mapping[int, float]], threshold: float
) -> Iterator[set[int]]:
    """Sets of devices that work on the same micro-batches and rose by about one factor in every single step."""
    sets = [plan.active, *(pipeline.devices for pipeline in plan.pipelines)]
    for devices in sets:
        members = {device for device in devices if device in ratios}
        if len(members) < 2 or not all(_is_up(ratios[device], threshold) for device in members):
            continue
        steps = [_finite(step, members) for step in recent]
        if all(max(values) <= (1 + 4 * threshold) * min(values) for values in steps if values):
            yield members


def _is_idle_calm(plan: Plan, ratios: Mapping[int, float], members: Collection[int], threshold: float) -> bool:
    """Whether all that computes rose, and the standby devices, whose probes see no data, did not."""
    idle = [ratios[device] for device in plan.standby if device in ratios]
    return bool(idle) and set(plan.active) <= set(members) and not any(_is_up(ratio, threshold) for ratio in idle)


def _heavy_stages(
    plan: Plan, ratios: Mapping[int, float], from_start: Collection[int], threshold: float
) -> Iterator[set[int]]:
    """Stage indices (counted from the front and from the back) that are heavy in every pipeline, alone."""
    if plan.dp_degree < 2:
        return
    up = {device for device in plan.active if device in ratios and _is_up(ratios[device], threshold)}
    depth = min(len(pipeline.stages) for pipeline in plan.pipelines)
    for index in (*range(depth), *range(-depth, 0)):
        members = {device for pipeline in plan.pipelines for device in pipeline.stages[index].devices}
        if members != up or members == set(plan.active) or not members <= set(from_start):
            continue
        if max(ratios[device] for device in members) <= (1 + 4 * threshold) * min(ratios[device] for device in members):
            yield members


def _fluctuates(devices: Collection[int], recent: Sequence[Mapping[int, float]], threshold: float) -> bool:
    """Whether the devices' common factor varies from step to step by more than four thresholds.

    Steps before the onset, and the onset itself, do not count: a change is no fluctuation.
    """
    factors = [statistics.median(values) for step in recent if (values := _finite(step, devices))]
    onset = next((index for index, factor in enumerate(factors) if abs(factor - 1) > threshold), len(factors))
    lasting = factors[onset + 1 :]
    return len(lasting) >= 3 and max(lasting) > (1 + 4 * threshold) * min(lasting)


def _finite(step: Mapping[int, float], devices: Collection[int]) -> list[float]:
    return [step[device] for device in devices if math.isfinite(step.get(device, math.nan))]


def _is_up(ratio: float, threshold: float) -> bool:
    return ratio > 1 + threshold
