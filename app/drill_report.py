"""What a drill (an injection, or a schedule that was played) came to, in figures.

    before | phase: some stragglers, until they change | phase | ...

Pure: rows in, figures out, each of them None where it was not measured. A phase lasts while the injected stragglers
stay the same; its figures are those of `app.phase_figures`. Stragglers that nobody injected are not known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from statistics import median
from typing import Any

from app.phase_figures import PhaseFigures, Reference, phase_figures
from app.phases import Phase, is_settled
from db.commands import CommandView
from db.history import StepView, SwitchView
from db.injections import InjectionView
from db.plans import PlanView
from planner.cost import plan_step_s
from planner.errors import PlannerError
from planner.plan import Plan
from planner.spec import ModelProfile

BEFORE_STEPS = 20
"""Train steps before the drill whose median is the step time before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillPhase:
    """Some stragglers, from the first step with them to the last; `figures` are None without a profile."""

    rates: dict[int, float]
    first_step: int
    last_step: int
    figures: PhaseFigures | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport:
    """The whole drill.

    Args:
        drill: id of the command that asked for it.
        end_at: when its last injection was cleared, or the next drill or the run's end came; None: it goes on.
        detect_steps, detect_s: of the first phase that led to a plan; see `PhaseFigures`.
        solve_s, plan_s: the longest of its plans, of the planner alone and with queueing.
        switch_steps, switch_s: from a plan that is solved to the step that begins under it; the longest.
        pause_s, bytes_moved: over all its switches.
        before_step_s: median step before it; during_step_s: with the stragglers under the plan of before;
            after_step_s: with the stragglers under the plan that followed, of the last phase that has one.
        bound_step_s: capacity bound with the stragglers of that phase; efficiency is bound over after.
        loss_before, loss_after: of the steps before and after the first switch.
        lost_s: sum of what its steps took beyond the step before it, and of the pauses.
    """

    drill: int
    run: int
    name: str
    requested_by: str
    requested_at: datetime
    accepted_at: datetime | None
    applied_at: datetime
    end_at: datetime | None
    first_step: int
    last_step: int
    detect_steps: int | None
    detect_s: float | None
    solve_s: float | None
    plan_s: float | None
    num_switches: int
    switch_steps: int | None
    switch_s: float | None
    pause_s: float
    bytes_moved: int
    before_step_s: float | None
    during_step_s: float | None
    after_step_s: float | None
    bound_step_s: float | None
    efficiency: float | None
    loss_before: float | None
    loss_after: float | None
    lost_s: float | None
    phases: tuple[DrillPhase, ...]

    @property
    def is_over(self) -> bool:
        return self.end_at is not None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def drill_report(
    command: CommandView,
    *,
    name: str,
    injections: Sequence[InjectionView],
    steps: Sequence[StepView],
    plans: Sequence[PlanView],
    switches: Sequence[SwitchView],
    num_devices: int,
    profile: ModelProfile | None,
    healthy_s: float | None,
    best_healthy_s: float | None = None,
    until: datetime | None = None,
) -> DrillReport | None:
    """The report of one drill; None before the engine has applied any of its injections.

    Args:
        name: what a person calls it.
        injections: of the run, any order; those of other drills that lasted into this one count as stragglers.
        steps: of the run from `BEFORE_STEPS` before the drill on, complete, in order.
        healthy_s: step without a straggler, which the bound is made of; where None, the step before the drill.
        best_healthy_s: predicted healthy step of the best plan known; where None, the first plan's counts.
        until: when the next drill began or the run ended.
    """
    mine = [entry for entry in injections if entry.command == command.id and entry.applied_step is not None]
    if not mine:
        return None
    first_step = min(entry.applied_step or 0 for entry in mine)
    applied_at = min(entry.applied_at for entry in mine if entry.applied_at is not None)
    end_at = _end_at(command, injections, until)
    inside = [step for step in steps if step.step >= first_step and (end_at is None or step.at <= end_at)]
    before = _median(
        step.step_s for step in [s for s in steps if s.step < first_step and s.phase == "train"][-BEFORE_STEPS:]
    )
    reference = _reference(num_devices, healthy_s or before, best_healthy_s, profile, plans)
    phases = _phases(injections, inside, plans, switches, reference)
    slow = [phase.figures for phase in phases if phase.rates and phase.figures is not None]
    moved = [figures for figures in slow if figures.straggling_step_s is not None]
    last = moved[-1] if moved else None
    applied = [
        switch
        for switch in switches
        if switch.outcome == "applied" and inside and first_step <= switch.step <= inside[-1].step
    ]
    waits = [wait for switch in applied if (wait := _wait(switch, plans, inside)) is not None]
    pause_s = sum(switch.pause_s for switch in applied)
    return DrillReport(
        drill=command.id,
        run=command.run,
        name=name,
        requested_by=command.actor,
        requested_at=command.created_at,
        accepted_at=command.accepted_at,
        applied_at=applied_at,
        end_at=end_at,
        first_step=first_step,
        last_step=inside[-1].step if inside else first_step,
        detect_steps=next((entry.detect_steps for entry in slow if entry.detect_steps is not None), None),
        detect_s=next((entry.detect_s for entry in slow if entry.detect_s is not None), None),
        solve_s=max((entry.solve_s for entry in slow if entry.solve_s is not None), default=None),
        plan_s=max((entry.plan_s for entry in slow if entry.plan_s is not None), default=None),
        num_switches=len(applied),
        switch_steps=max((num_steps for num_steps, _ in waits), default=None),
        switch_s=max((seconds for _, seconds in waits), default=None),
        pause_s=pause_s,
        bytes_moved=sum(switch.bytes_moved for switch in applied),
        before_step_s=before,
        during_step_s=_during(slow),
        after_step_s=None if last is None else last.step_s,
        bound_step_s=None if not slow else (last or slow[-1]).bound_s,
        efficiency=None if last is None else last.efficiency,
        loss_before=None if not applied else _loss([s for s in steps if s.step < applied[0].step][-1:]),
        loss_after=None if not applied else _loss([s for s in steps if s.step >= applied[0].step][:1]),
        lost_s=None if before is None else pause_s + sum(max(s.step_s - before, 0.0) for s in inside if _is_known(s)),
        phases=tuple(phases),
    )


def _end_at(command: CommandView, injections: Sequence[InjectionView], until: datetime | None) -> datetime | None:
    mine = [entry for entry in injections if entry.command == command.id]
    ends = [entry.cleared_at for entry in mine]
    is_all_played = command.status in ("applied", "failed")
    cleared = max((end for end in ends if end is not None), default=None)
    is_cleared = is_all_played and all(end is not None for end in ends)
    found = [moment for moment in (cleared if is_cleared else None, until) if moment is not None]
    return min(found, default=None)


def _reference(
    num_devices: int,
    healthy_s: float | None,
    best_healthy_s: float | None,
    profile: ModelProfile | None,
    plans: Sequence[PlanView],
) -> Reference | None:
    if profile is None or healthy_s is None:
        return None
    first = min((plan for plan in plans if plan.document is not None), key=lambda plan: plan.version, default=None)
    try:
        predicted_s = plan_step_s(Plan.from_json(first.document), profile, {}) if first and first.document else None
    except PlannerError:
        return None
    if predicted_s is None:
        return None
    if best_healthy_s is not None:
        predicted_s = min(predicted_s, best_healthy_s)
    return Reference(num_devices=num_devices, healthy_s=healthy_s, predicted_healthy_s=predicted_s, profile=profile)


def _phases(
    injections: Sequence[InjectionView],
    steps: Sequence[StepView],
    plans: Sequence[PlanView],
    switches: Sequence[SwitchView],
    reference: Reference | None,
) -> list[DrillPhase]:
    """Steps with the same stragglers, one after the other."""
    grouped: list[tuple[dict[int, float], list[StepView]]] = []
    for step in steps:
        rates = _rates(injections, step)
        if not grouped or grouped[-1][0] != rates:
            grouped.append((rates, []))
        grouped[-1][1].append(step)
    return [
        DrillPhase(
            rates=rates,
            first_step=members[0].step,
            last_step=members[-1].step,
            figures=None if reference is None else _figures(rates, members, plans, switches, reference),
        )
        for rates, members in grouped
    ]


def _rates(injections: Sequence[InjectionView], step: StepView) -> dict[int, float]:
    """The stragglers that a step ran with: those applied by then and not cleared before it began."""
    begin = step.at.timestamp() - (step.step_s if math.isfinite(step.step_s) else 0.0)
    return {
        entry.device: entry.rate
        for entry in sorted(injections, key=lambda entry: entry.id)
        if entry.applied_step is not None
        and entry.applied_step <= step.step
        and entry.rate != 1.0
        and (entry.cleared_at is None or entry.cleared_at.timestamp() > begin)
    }


def _figures(
    rates: Mapping[int, float],
    steps: Sequence[StepView],
    plans: Sequence[PlanView],
    switches: Sequence[SwitchView],
    reference: Reference,
) -> PhaseFigures:
    first, last = steps[0], steps[-1]
    switched = [
        switch.step for switch in switches if switch.outcome == "applied" and first.step <= switch.step <= last.step
    ]
    base_version = next(
        (
            switch.from_version
            for switch in switches
            if switch.outcome == "applied" and first.step <= switch.step <= last.step
        ),
        first.plan_version,
    )
    known = sorted((plan for plan in plans if plan.created_at <= last.at), key=lambda plan: -plan.version)
    phase = Phase(
        name=", ".join(f"{device}: {rate:g}" for device, rate in sorted(rates.items())) or "healthy",
        rates=dict(rates),
        base_version=base_version,
        first_step=first.step,
        last_step=last.step,
        settled_step=max(switched, default=None),
        is_settled=is_settled(known, rates),
    )
    return phase_figures(phase, reference, steps=steps, plans=plans, switches=switches)


def _wait(switch: SwitchView, plans: Sequence[PlanView], steps: Sequence[StepView]) -> tuple[int, float] | None:
    """Steps and seconds between a plan that was solved and the first step under it."""
    plan = next((plan for plan in plans if plan.version == switch.plan_version), None)
    if plan is None or plan.solved_at is None:
        return None
    solved_at = plan.solved_at
    num_steps = sum(step.at > solved_at and step.step < switch.step for step in steps)
    return num_steps, max((switch.at - solved_at).total_seconds(), 0.0)


def _during(figures: Sequence[PhaseFigures]) -> float | None:
    """The slowest phase while its stragglers ran under the plan of before."""
    values = [entry.step_s if entry.straggling_step_s is None else entry.straggling_step_s for entry in figures]
    return max((value for value in values if value is not None), default=None)


def _loss(steps: Sequence[StepView]) -> float | None:
    return steps[0].loss if steps else None


def _is_known(step: StepView) -> bool:
    return math.isfinite(step.step_s)


def _median(values: Any) -> float | None:
    found = [value for value in values if math.isfinite(value)]
    return median(found) if found else None
