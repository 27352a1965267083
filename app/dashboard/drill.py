"""The timeline of a drill: what happened after an injection was asked for, stage by stage.

    requested -> accepted -> applied at step n -> detected -> plan -> switched -> recovered

Pure: rows of the store in, stages out. A stage that has not happened says what it waits for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Literal

from app.dashboard import quantities as q

if TYPE_CHECKING:
    from app.dashboard.charts import StepPoint
    from db.commands import CommandView
    from db.episodes import EpisodeView
    from db.history import SwitchView
    from db.injections import InjectionView
    from db.plans import PlanView

StageState = Literal["done", "waiting", "failed", "later"]

RECOVERED_WITHIN = 1.25
"""Recovered: the median step after the switch is within this factor of the capacity bound."""

JUDGED_STEPS = 3
"""Steps after the switch that are judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillStage:
    """One stage. `at` is when it happened; `note` what happened, or what it waits for."""

    name: str
    state: StageState
    at: datetime | None = None
    note: str = ""


def as_drill(command: CommandView, injections: Sequence[InjectionView]) -> CommandView:
    """A `play` as if it were one injection of all its devices: its drill begins with the first that was applied."""
    if command.kind != "play":
        return command
    devices = sorted({int(entry["device"]) for entry in command.arguments["entries"] if entry["rate"] > 1.0})
    mine = [entry for entry in injections if entry.command == command.id and entry.applied_at is not None]
    drill = replace(command, arguments={"devices": devices, "rate": None, "for_s": None})
    if not mine:
        return drill
    first = min(mine, key=lambda entry: entry.id)
    return replace(drill, status="applied", applied_step=first.applied_step, done_at=first.applied_at)


def drill_stages(
    command: CommandView,
    *,
    episodes: Sequence[EpisodeView],
    plans: Sequence[PlanView],
    switches: Sequence[SwitchView],
    points: Sequence[StepPoint],
    mode: str,
    detected_at: Mapping[int, datetime],
    until: datetime | None = None,
) -> list[DrillStage]:
    """The stages of one injection.

    Args:
        command: an `inject` command, or a `play` by `as_drill`.
        episodes, plans, switches: of its run, any order.
        points: steps with their capacity bound, in step order.
        detected_at: when each episode was opened, by its id; where unknown, its first slow step stands in.
        until: when the next drill began; what happened later belongs to that one.
    """
    end = until or datetime.max.replace(tzinfo=command.created_at.tzinfo)
    stages = [
        DrillStage(name="requested", state="done", at=command.created_at, note=f"by {command.actor} ({command.source})")
    ]
    if command.status == "failed":
        return [*stages, DrillStage(name="accepted", state="failed", at=command.done_at, note=command.result)]
    stages.append(_accepted(command))
    stages.append(_applied(command))
    if command.status != "applied":
        return stages + [DrillStage(name=name, state="later") for name in ("detected", "plan", "switched", "recovered")]
    episode = _detected_by(command, episodes, end)
    if episode is None:
        note = "waits until the shift has lasted" if until is None else "not detected before the next injection"
        stages.append(DrillStage(name="detected", state="waiting" if until is None else "failed", note=note))
        return stages + [DrillStage(name=name, state="later") for name in ("plan", "switched", "recovered")]
    seen_at = detected_at.get(episode.id, episode.start_at)
    stages.append(
        DrillStage(name="detected", state="done", at=seen_at, note=f"{q.rate(episode.rate)}, {_lag(command, episode)}")
    )
    plan = _plan_after(plans, command, end)
    stages += _planned(plan, mode)
    if plan is None or plan.status in ("rejected", "failed"):
        return stages
    switch = next((entry for entry in switches if entry.plan_version == plan.version), None)
    stages.append(_switched(plan, switch))
    stages.append(_recovered(switch, points))
    return stages


def lag(before: DrillStage, after: DrillStage) -> str:
    """Time between two stages: `+0.8 s`; empty where one has not happened."""
    if before.at is None or after.at is None:
        return ""
    return f"+{q.age((after.at - before.at).total_seconds())}"


def _accepted(command: CommandView) -> DrillStage:
    if command.accepted_at is None:
        return DrillStage(name="accepted", state="waiting", note="waits for the controller")
    return DrillStage(name="accepted", state="done", at=command.accepted_at, note="by the controller")


def _applied(command: CommandView) -> DrillStage:
    if command.status == "applied":
        step = f"at step {q.count(command.applied_step)}" if command.applied_step is not None else ""
        return DrillStage(name="applied", state="done", at=command.done_at, note=step)
    if command.accepted_at is None:
        return DrillStage(name="applied", state="later")
    return DrillStage(name="applied", state="waiting", note="waits for the engine's next step boundary")


def _detected_by(command: CommandView, episodes: Sequence[EpisodeView], end: datetime) -> EpisodeView | None:
    devices = set(command.arguments.get("devices") or ())
    first_step = command.applied_step or 0
    found = [
        episode
        for episode in episodes
        if episode.device in devices
        and episode.start_at < end
        and (episode.start_step >= first_step - 1 or episode.end_at is None or episode.end_at > command.created_at)
    ]
    return min(found, key=lambda episode: abs(episode.start_step - first_step), default=None)


def _lag(command: CommandView, episode: EpisodeView) -> str:
    if command.applied_step is None:
        return f"slow since step {q.count(episode.start_step)}"
    steps = episode.start_step - command.applied_step
    return f"slow since step {q.count(episode.start_step)} ({steps:+d})"


def _plan_after(plans: Sequence[PlanView], command: CommandView, end: datetime) -> PlanView | None:
    devices = set(command.arguments.get("devices") or ())
    found = [
        plan
        for plan in plans
        if command.created_at <= plan.created_at < end and any(device in plan.rates for device in devices)
    ]
    good = [plan for plan in found if plan.status not in ("rejected", "failed")]
    return min(good or found, key=lambda plan: plan.version, default=None)


def _planned(plan: PlanView | None, mode: str) -> list[DrillStage]:
    if plan is None:
        note = "re-planning is off" if mode == "off" else "waits for the controller to ask for one"
        return [
            DrillStage(name="plan", state="failed" if mode == "off" else "waiting", note=note),
            DrillStage(name="switched", state="later"),
            DrillStage(name="recovered", state="later"),
        ]
    name = f"plan v{plan.version}"
    if plan.status in ("queued", "solving"):
        note = "waits for a worker" if plan.status == "queued" else "is being computed"
        return [DrillStage(name=name, state="waiting", note=note)]
    if plan.status in ("rejected", "failed"):
        return [
            DrillStage(
                name=name,
                state="failed",
                at=plan.solved_at or plan.decided_at,
                note=q.arrows(plan.reason or plan.status),
            ),
            DrillStage(name="switched", state="later"),
            DrillStage(name="recovered", state="later"),
        ]
    note = f"solved in {q.seconds(plan.solve_s)}" if plan.solve_s is not None else "ready"
    return [DrillStage(name=name, state="done", at=plan.solved_at, note=note)]


def _switched(plan: PlanView, switch: SwitchView | None) -> DrillStage:
    if switch is None:
        waits = {
            "ready": "waits for approval",
            "approved": "waits for the next step boundary",
            "switching": "the ranks are moving",
        }
        return DrillStage(name="switched", state="waiting", note=waits.get(plan.status, "waits for the plan"))
    if switch.outcome != "applied":
        return DrillStage(name="switched", state="failed", at=switch.at, note=switch.reason or switch.outcome)
    note = f"before step {q.count(switch.step)}, paused {q.seconds(switch.pause_s)}, {q.num_bytes(switch.bytes_moved)}"
    return DrillStage(name="switched", state="done", at=switch.at, note=note)


def _recovered(switch: SwitchView | None, points: Sequence[StepPoint]) -> DrillStage:
    if switch is None or switch.outcome != "applied":
        return DrillStage(name="recovered", state="later")
    after = [
        point
        for point in points
        if point.plan_version == switch.plan_version and point.phase == "train" and point.step >= switch.step
    ][:JUDGED_STEPS]
    if len(after) < JUDGED_STEPS:
        return DrillStage(name="recovered", state="waiting", note=f"waits for {JUDGED_STEPS} steps under the new plan")
    bounds = [point.bound_s for point in after if point.bound_s is not None]
    measured = median(point.step_s for point in after)
    if not bounds or not math.isfinite(measured):
        return DrillStage(name="recovered", state="done", at=after[-1].at, note=q.seconds(measured))
    factor = measured / median(bounds)
    note = f"{q.seconds(measured)} a step, {factor:.2f}{q.TIMES} the capacity bound"
    state: StageState = "done" if factor <= RECOVERED_WITHIN else "failed"
    return DrillStage(name="recovered", state=state, at=after[-1].at, note=note)


def drill_span(stages: Sequence[DrillStage]) -> timedelta | None:
    """From the first stage to the last that has happened."""
    moments = [stage.at for stage in stages if stage.at is not None]
    return max(moments) - min(moments) if len(moments) > 1 else None
