"""Everything that a page knows about one run at one moment, and what follows from it.

Plain data that `reads` fills; the derived parts (rates, bounds, marks, grid cells, the alert) are pure
and are computed once per snapshot. Pages only lay it out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from app.dashboard import plan_map
from app.dashboard import quantities as q
from app.dashboard.alert import Alert, Situation, alert
from app.dashboard.charts import EvaluationPoint, RatePoint, StepPoint
from app.dashboard.device_grid import Cell, cell_state
from app.dashboard.event_lanes import Mark
from app.dashboard.headline import Headline, Predictions, headline, parsed
from app.dashboard.rate_colors import HEALTHY_BELOW
from app.dashboard.rate_history import RateHistory, rate_history
from db.levels import LIMITS
from planner.cost import plan_step_s
from planner.errors import PlannerError, SpecError
from planner.plan import Plan
from planner.spec import ModelProfile

if TYPE_CHECKING:
    from db.commands import CommandView
    from db.episodes import EpisodeView
    from db.heartbeats import BeatView
    from db.history import DeviceView, EvaluationView, RateWindow, StepView, SwitchView
    from db.injections import InjectionView
    from db.plans import PlanView
    from db.runs import RunView

STALE_AFTER_S = LIMITS["data_age_s"].warn
"""Data older than this (and than three steps) is shown as stale."""

SERVICE_SILENT_S = 10.0
"""A service whose last beat is older than this counts as silent."""

CONTROLLER_SILENT_S = LIMITS["silence_s"].warn
"""The same for the controller, which beats every second. Less than `STALE_AFTER_S`: the engine is heard through it, so
its silence must be known before anybody blames the engine."""

SILENT_STEPS = 2
"""A device that measured nothing in this many last steps is silent."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One run, read at `now`.

    Args:
        steps: of the whole run, thinned, the newest complete.
        window: rates of the last train steps.
        heard_at: when each device last measured something.
        plans: newest first; the first plan and the active one are always among them.
        episodes, injections: newest first, ended ones too.
        switches, evaluations: oldest first.
        commands: the last ones, newest first.
        beats: by service.
        predictions: what the snapshots of a run have computed so far, shared between them.
    """

    run: RunView
    now: datetime
    steps: Sequence[StepView]
    window: RateWindow
    heard_at: Mapping[int, datetime]
    devices: Sequence[DeviceView]
    plans: Sequence[PlanView]
    episodes: Sequence[EpisodeView]
    injections: Sequence[InjectionView]
    switches: Sequence[SwitchView]
    evaluations: Sequence[EvaluationView]
    commands: Sequence[CommandView]
    beats: Mapping[str, BeatView]
    predictions: Predictions = field(default_factory=dict)

    @cached_property
    def rates(self) -> dict[int, float]:
        """Rate now of every device: median of the last train steps; NaN where it is silent."""
        return {device: _rate_now(values) for device, values in self.window.rates.items()}

    @cached_property
    def history(self) -> RateHistory:
        return rate_history(self.episodes, self.plans, self.run.config.num_devices)

    @cached_property
    def profile(self) -> ModelProfile | None:
        if self.run.profile is None:
            return None
        try:
            return ModelProfile.from_json(self.run.profile)
        except (SpecError, ValueError):
            return None

    @cached_property
    def active_plan(self) -> Plan | None:
        """The plan that the run executes (before its first step: the one it should)."""
        version = self.active_version
        plan = next((plan for plan in self.plans if plan.version == version), None)
        return parsed(plan.document) if plan is not None else None

    @property
    def active_version(self) -> int:
        return self.run.active_plan_version or self.run.target_plan_version

    @cached_property
    def figures(self) -> Headline:
        return headline(
            self.steps,
            self.history,
            self.rates,
            self.plans,
            self.switches,
            active_version=self.active_version,
            profile=self.profile,
            predictions=self.predictions,
        )

    @property
    def data_age_s(self) -> float | None:
        """Seconds since the run was last heard; None before that."""
        seen_at = self.run.last_seen_at
        return None if seen_at is None else max((self.now - seen_at).total_seconds(), 0.0)

    @property
    def stale_after_s(self) -> float:
        """Age from which the data counts as stale: a run of slow steps speaks less often."""
        step_s = self.run.step_s
        return max(STALE_AFTER_S, 3 * step_s if step_s is not None and math.isfinite(step_s) else 0.0)

    @property
    def is_stale(self) -> bool:
        """Whether an open run has not been heard for too long."""
        if not self.run.is_open:
            return False
        age_s = self.data_age_s
        return age_s is not None and age_s > self.stale_after_s

    def silent_s(self, service: str) -> float | None:
        """How long a service has been silent; None if it is alive; inf if it never beat."""
        beat = self.beats.get(service)
        if beat is None:
            return math.inf
        age_s = (self.now - beat.at).total_seconds()
        return age_s if age_s > (CONTROLLER_SILENT_S if service == "controller" else SERVICE_SILENT_S) else None

    @cached_property
    def alert(self) -> Alert:
        config = self.run.config
        situation = Situation(
            run=self.run.id,
            mode=self.run.mode,
            num_devices=config.num_devices,
            node_of={device.device: device.node for device in self.devices},
            rates=self.rates,
            episodes=[episode for episode in self.episodes if episode.is_open],
            plans=self.plans,
            active_version=self.active_version,
            figures=self.figures,
            last_loss=self.run.loss,
            patience_steps=config.control.patience_steps,
            now=self.now,
            has_steps=bool(self.steps),
        )
        return alert(situation)

    def predicted_s(self, plan: Plan | None) -> float | None:
        """Predicted step time of a plan at the rates measured now; None without plan or profile."""
        return self.predicted_at(plan, self.rates)

    def predicted_at(self, plan: Plan | None, rates: Mapping[int, float]) -> float | None:
        """Predicted step time of a plan at given rates; None without plan or profile."""
        if plan is None or self.profile is None:
            return None
        known = {device: rate for device, rate in rates.items() if rate >= HEALTHY_BELOW}
        try:
            return plan_step_s(plan, self.profile, known)
        except PlannerError:
            return None

    def cells(self) -> list[Cell]:
        """The device grid."""
        plan = self.active_plan
        injected = {entry.device for entry in self.injections if entry.status == "active"}
        cells = []
        for device in self.devices:
            role, place = plan_map.place(plan, device.device) if plan is not None else ("active", "")
            rate = self.rates.get(device.device)
            heard_at = self.heard_at.get(device.device)
            is_known = rate is not None and not math.isnan(rate)
            cells.append(
                Cell(
                    device=device.device,
                    node=device.node,
                    state=cell_state(role=role, rate=rate, is_heard=is_known),
                    rate=rate,
                    age_s=(self.now - heard_at).total_seconds() if heard_at is not None else None,
                    place=place,
                    is_injected=device.device in injected,
                )
            )
        return cells

    def points(self, steps: Sequence[StepView]) -> list[StepPoint]:
        """Steps with the capacity bound of their moment."""
        bounds: dict[int, float | None] = {}
        for step in steps:
            span = self.history.span(step.at)
            if span not in bounds:
                bounds[span] = self.history.bound_s(step.at, self.figures.capacity_s)
        return [
            StepPoint(
                step=step.step,
                at=step.at,
                step_s=step.step_s,
                loss=step.loss,
                plan_version=step.plan_version,
                phase=step.phase,
                bound_s=bounds[self.history.span(step.at)],
            )
            for step in steps
        ]

    def evaluation_points(self) -> list[EvaluationPoint]:
        """Evaluations on the time axis."""
        return [EvaluationPoint(step=entry.step, at=entry.at, loss=entry.loss) for entry in self.evaluations]

    def marks(self) -> list[Mark]:
        """Injections, shifts, plans, switches and restarts as marks on the time axis."""
        return [
            *_injection_marks(self.injections),
            *_shift_marks(self.episodes),
            *_plan_marks(self.plans),
            *_switch_marks(self.switches, {plan.version: plan for plan in self.plans}),
            *_restart_marks(self.steps, self.commands),
        ]


def rate_points(rates: Sequence[tuple[int, float]], steps: Sequence[StepView]) -> list[RatePoint]:
    """A device's `(step, rate)` series on the time axis of the steps (thinned steps are interpolated)."""
    if not steps:
        return []
    points, index = [], 0
    for step, rate in rates:
        while index + 1 < len(steps) and steps[index + 1].step <= step:
            index += 1
        here = steps[index]
        at = here.at
        if index + 1 < len(steps) and step > here.step:
            following = steps[index + 1]
            at += (following.at - here.at) * ((step - here.step) / (following.step - here.step))
        points.append(RatePoint(step=step, at=at, rate=rate))
    return points


def _rate_now(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    if not known or all(math.isnan(value) for value in values[-SILENT_STEPS:]):
        return math.nan
    return median(known)


def _injection_marks(injections: Sequence[InjectionView]) -> list[Mark]:
    marks = []
    for entry in injections:
        if entry.applied_at is not None:
            text = (
                f"device {entry.device} injected at {q.rate(entry.rate)}, applied at step {q.count(entry.applied_step)}"
            )
            marks.append(Mark(kind="injected", at=entry.applied_at, text=text))
        if entry.cleared_at is not None and entry.applied_at is not None:
            text = f"injection on device {entry.device} cleared"
            marks.append(Mark(kind="injected", at=entry.cleared_at, text=text, is_end=True))
    return marks


def _shift_marks(episodes: Sequence[EpisodeView]) -> list[Mark]:
    marks = []
    for episode in episodes:
        text = f"device {episode.device} is {q.rate(episode.rate)} slow from step {q.count(episode.start_step)}"
        marks.append(Mark(kind="shift", at=episode.start_at, text=f"{text} (cause: {episode.cause})"))
        if episode.end_at is not None:
            text = f"device {episode.device} has recovered at step {q.count(episode.end_step)}"
            marks.append(Mark(kind="shift", at=episode.end_at, text=text, is_end=True))
    return marks


def _plan_marks(plans: Sequence[PlanView]) -> list[Mark]:
    marks = []
    for plan in plans:
        if plan.solved_at is None:
            continue
        is_bad = plan.status in ("rejected", "failed")
        text = f"plan v{plan.version} {plan.status if is_bad else 'ready'}"
        if plan.predicted_s is not None and not is_bad:
            text += f", predicts {q.seconds(plan.predicted_s)} a step"
        reason = f": {q.arrows(plan.reason)}" if plan.reason and is_bad else ""
        marks.append(Mark(kind="plan", at=plan.solved_at, text=f"{text} ({plan.trigger}){reason}", is_bad=is_bad))
    return marks


def _switch_marks(switches: Sequence[SwitchView], plans: Mapping[int, PlanView]) -> list[Mark]:
    marks = []
    for switch in switches:
        plan = plans.get(switch.plan_version)
        who = f", decided by {plan.decided_by}" if plan is not None and plan.decided_by else ""
        if switch.outcome == "applied":
            text = (
                f"switched v{switch.from_version} to v{switch.plan_version} before step {q.count(switch.step)}, "
                f"paused {q.seconds(switch.pause_s)}{who}"
            )
            marks.append(Mark(kind="switched", at=switch.at, text=text))
        else:
            text = f"switch to v{switch.plan_version} refused: {switch.reason}"
            marks.append(Mark(kind="switched", at=switch.at, text=text, is_bad=True))
    return marks


def _restart_marks(steps: Sequence[StepView], commands: Sequence[CommandView]) -> list[Mark]:
    """Where the steps of one attempt of the engine follow those of another; with who let a device fail between them."""
    marks = []
    for before, step in pairwise(steps):
        if step.attempt == before.attempt:
            continue
        asked = [
            f", device {command.arguments['device']} was let fail by {command.actor}"
            for command in commands
            if (command.kind, command.status, command.arguments.get("attempt")) == ("fail", "applied", before.attempt)
        ]
        text = f"engine started again, goes on from step {q.count(step.step)}{''.join(asked)}"
        marks.append(Mark(kind="restart", at=step.at, text=text))
    return marks
