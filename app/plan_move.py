"""Whether the plan that was found is worth moving to from a plan that runs now: bytes, pause, pay-back.

`malleus plan --current` calls it, offline: no run is asked, so the pause is the one that is assumed before
any switch was measured (see `planner.decide`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db.errors import InputError
from planner.decide import Decision, Move, decide
from planner.diff import PlanDiff, diff
from planner.errors import PlanError
from planner.plan import Plan
from planner.solve import SolveResult
from planner.spec import ClusterSpec, ModelProfile, TrainSpec
from planner.validate import violations


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMove:
    """The way from the current plan to the best one.

    Args:
        changes: what moves; empty if the current plan is the best.
        decision: move or stay, with the reason.
        steps_to_pay_back: steps after which the gain has exceeded the pause; None if never.
    """

    changes: PlanDiff
    decision: Decision
    steps_to_pay_back: int | None

    def to_json(self) -> dict[str, Any]:
        return {
            "choice": "move" if self.decision.is_worth else "stay",
            "reason": self.decision.reason,
            "moved_bytes": self.changes.moved_bytes,
            "pause_s": self.decision.cost_s,
            "gain_s": self.decision.gain_s,
            "num_steps": self.decision.num_steps,
            "saving_s": self.decision.saving_s,
            "steps_to_pay_back": self.steps_to_pay_back,
            "diff": self.changes.to_json(),
        }


def planned_move(result: SolveResult, current: Plan, profile: ModelProfile, num_steps: int) -> PlannedMove | None:
    """Weighs the best plan of a result against the current plan; None if no plan was found.

    Args:
        num_steps: steps that the gain is expected to last.
    """
    if result.best is None or result.current_s is None:
        return None
    best = result.best
    return weighed_move(current, best.plan, profile, stay_s=result.current_s, move_s=best.step_s, num_steps=num_steps)


def weighed_move(
    current: Plan,
    plan: Plan,
    profile: ModelProfile,
    *,
    stay_s: float,
    move_s: float,
    num_steps: int,
    history: Sequence[Move] = (),
) -> PlannedMove:
    """Weighs a plan against the current one.

    Args:
        stay_s, move_s: predicted seconds of a step under each; inf for one that cannot run.
        num_steps: steps that the gain is expected to last.
        history: switches that the run has measured.
    """
    changes = diff(current, plan, profile)
    decision = decide(
        stay_s=stay_s, move_s=move_s, num_steps=num_steps, num_bytes=changes.moved_bytes or 0.0, history=history
    )
    pay_back = None
    if decision.gain_s > 0:
        pay_back = 0 if math.isinf(decision.gain_s) else math.floor(decision.cost_s / decision.gain_s) + 1
    return PlannedMove(changes=changes, decision=decision, steps_to_pay_back=pay_back)


def plan_in_file(path: Path, name: str) -> Plan:
    """A plan from a file: its document, or what `malleus plan --json` printed. Its rules are not checked.

    Args:
        name: how messages name the file.

    Raises:
        InputError: unreadable, or no plan.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{name} is not readable JSON: {error}") from None
    if isinstance(document, dict) and "plans" in document:
        ranked = document["plans"]
        if not isinstance(ranked, list) or not ranked or not isinstance(ranked[0], dict):
            raise InputError(f"{name} must hold a plan, given a result without any")
        document = ranked[0].get("plan")
    try:
        return Plan.from_json(document)
    except PlanError as error:
        raise InputError(f"{name}: {error}") from None


def read_plan(path: Path, *, cluster: ClusterSpec, profile: ModelProfile, train: TrainSpec) -> Plan:
    """A plan of this cluster, model and batch from a file (see `plan_in_file`).

    Memory is not checked: a plan that does not fit is one that cannot go on, and the search says so.

    Raises:
        InputError: unreadable, no plan, or a plan for something else.
    """
    plan = plan_in_file(path, f"--current {path}")
    broken = violations(
        plan, cluster=cluster, num_layers=profile.num_layers, global_batch=train.global_batch, max_tp=None
    )
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise InputError(f"--current {path} does not fit this cluster, model and batch: {broken[0]}{more}")
    return plan
