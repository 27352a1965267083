"""The planner's answer to a what-if, read from its row, and weighed against the plan in use. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.dashboard.headline import parsed
from app.plan_move import PlannedMove, weighed_move
from db.what_if_request import WhatIfRequest
from planner.decide import Move
from planner.errors import PlannerError
from planner.plan import Plan
from planner.spec import ClusterSpec, ModelProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the plans that were found."""

    plan: Plan
    step_s: float
    moved_bytes: float
    is_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was found for a question.

    Args:
        choices: fastest first; empty if there is no plan.
        current_s: predicted step seconds of staying; inf if that cannot run, None without a plan in use.
        capacity: work that the devices do together, a healthy one being 1; of `num_devices`.
    """

    status: str
    reason: str
    choices: tuple[Choice, ...]
    current: Plan | None
    current_s: float | None
    bound_s: float
    healthy_s: float
    seconds: float
    log: tuple[str, ...]
    rates: Mapping[int, float]
    cluster: ClusterSpec
    profile: ModelProfile
    global_batch: int
    num_steps: int
    moves: tuple[Move, ...]

    @property
    def capacity(self) -> float:
        return sum(1 / self.rates.get(device, 1.0) for device in self.cluster.devices)

    @property
    def num_devices(self) -> int:
        return len(self.cluster.devices)

    def gap(self, step_s: float | None) -> float | None:
        """How far a step time is above the bound; None where one of them is unknown."""
        if step_s is None or not math.isfinite(step_s) or not 0 < self.bound_s < math.inf:
            return None
        return step_s / self.bound_s - 1

    def move_to(self, choice: Choice) -> PlannedMove | None:
        """What moving from the plan in use to a choice means; None without one, or to itself."""
        if self.current is None or self.current_s is None or choice.is_current:
            return None
        return weighed_move(
            self.current,
            choice.plan,
            self.profile,
            stay_s=self.current_s,
            move_s=choice.step_s,
            num_steps=self.num_steps,
            history=self.moves,
        )


def answer_of(request: WhatIfRequest, result: Mapping[str, Any]) -> Answer | None:
    """The answer; None if it cannot be read."""
    try:
        cluster, profile = ClusterSpec.from_json(request.cluster), ModelProfile.from_json(request.profile)
        return Answer(
            status=str(result["status"]),
            reason=str(result["reason"]),
            choices=tuple(
                Choice(
                    plan=Plan.from_json(entry["plan"]),
                    step_s=_number(entry["step_s"]),
                    moved_bytes=_number(entry["moved_bytes"]),
                    is_current=bool(entry["is_current"]),
                )
                for entry in result["plans"]
            ),
            current=parsed(request.current),
            current_s=None if result["current_s"] is None else _number(result["current_s"]),
            bound_s=_number(result["bound_s"]),
            healthy_s=_number(result["healthy_s"]),
            seconds=_number(result["seconds"]),
            log=tuple(str(line) for line in result["log"]),
            rates=request.rates,
            cluster=cluster,
            profile=profile,
            global_batch=int(request.train["global_batch"]),
            num_steps=request.num_steps,
            moves=tuple(Move(num_bytes=num_bytes, pause_s=pause_s) for num_bytes, pause_s in request.moves),
        )
    except (KeyError, TypeError, ValueError, PlannerError):
        return None


def proposal(plan: Plan, gone: Sequence[int]) -> Plan:
    """A plan as it may be proposed to a run: a device that it writes off, but that is alive, stands by instead.

    Args:
        gone: devices that have failed in the run.
    """
    alive = [device for device in plan.failed if device not in gone]
    return replace(
        plan,
        standby=tuple(sorted({*plan.standby, *alive})),
        failed=tuple(device for device in plan.failed if device not in alive),
    )


def _number(value: Any) -> float:
    return float(value)  # also of "Infinity" and "NaN", as the planner writes them
