"""When a step was, and which plan ran it, from a thinned series of steps. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from db.history import StepView, SwitchView


class StepClock:
    """Instants of steps; between two known steps time is interpolated.

    Args:
        steps: at least one, in order.
    """

    def __init__(self, steps: Sequence[StepView]) -> None:
        assert steps, "a clock needs a step"
        self._steps = [step.step for step in steps]
        self._moments = [step.at.timestamp() for step in steps]

    def at(self, step: float) -> datetime:
        """When a step (or a place between two) was; outside of the series, its nearest end."""
        return datetime.fromtimestamp(self.seconds(step), UTC)

    def seconds(self, step: float) -> float:
        """The same in seconds since 1970."""
        index = bisect_right(self._steps, step) - 1
        if index < 0:
            return self._moments[0]
        if index + 1 == len(self._steps):
            return self._moments[-1]
        share = (step - self._steps[index]) / (self._steps[index + 1] - self._steps[index])
        return self._moments[index] + share * (self._moments[index + 1] - self._moments[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpan:
    """Steps that one plan version ran; `stop_step` is not one of them."""

    version: int
    first_step: int
    stop_step: int


def plan_spans(steps: Sequence[StepView], switches: Sequence[SwitchView]) -> list[PlanSpan]:
    """Which plan ran which steps, in order.

    Args:
        steps: in order, thinned or not.
        switches: give the exact step of a change that thinning has hidden.
    """
    if not steps:
        return []
    applied = {(switch.plan_version, switch.step) for switch in switches if switch.outcome == "applied"}
    starts = [(steps[0].plan_version, steps[0].step)]
    for before, after in pairwise(steps):
        if before.plan_version == after.plan_version:
            continue
        hidden = [
            (step, version)
            for version, step in applied
            if before.step < step <= after.step and version != starts[-1][0]
        ]
        starts += [(version, step) for step, version in sorted(hidden)] or [(after.plan_version, after.step)]
        if starts[-1][0] != after.plan_version:
            starts.append((after.plan_version, after.step))
    stops = [step for _, step in starts[1:]] + [steps[-1].step + 1]
    return [
        PlanSpan(version=version, first_step=first, stop_step=stop)
        for (version, first), stop in zip(starts, stops, strict=True)
        if stop > first
    ]
