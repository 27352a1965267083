"""What a phase comes to, in figures: step times against the capacity bound and against the prediction.

Pure: rows in, figures out. A figure that was not measured is None. Three things can keep a job from its
bound, and each has its ratio here: the plan (`bound` over `predicted`: whole layers and micro-batches,
memory, group sizes), the event model (`predicted` over `measured`), and time lost on the way (`settle_s`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from app.phases import Phase
from db.history import StepView, SwitchView
from db.plans import PlanView
from planner.cost import capacity_bound_s, plan_step_s
from planner.plan import Plan
from planner.spec import ModelProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What a phase is compared with.

    Args:
        num_devices: N of the bound.
        healthy_s: step of the best healthy plan, which the bound is made of.
        predicted_healthy_s: the same as the event model has it.
        profile: the run's calibrated costs.
    """

    num_devices: int
    healthy_s: float
    predicted_healthy_s: float
    profile: ModelProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """Seconds are wall time; steps are of phase `train`.

    Args:
        step_s: median of the steady steps, `num_steps` of them from `min_step_s` to `max_step_s`.
        bound_s: capacity bound (healthy step x N / sum of 1/x); efficiency is bound over step.
        predicted_step_s, predicted_bound_s: of the event model, for the plan that ran and the true rates.
        straggling_step_s: median under the plan that was active as the phase began.
        detect_steps, detect_s: steps with the new rates, and seconds, until the first plan was asked for.
        solve_s: of the planner alone, the longest; plan_s with queueing.
        pause_s, bytes_moved: over all switches.
        settle_s: from the beginning of the phase to the first steady step.
        plan: the one that the steady steps ran, in one line.
    """

    situation: str
    is_settled: bool
    step_s: float | None
    min_step_s: float | None
    max_step_s: float | None
    num_steps: int
    bound_s: float
    efficiency: float | None
    predicted_step_s: float | None
    predicted_bound_s: float
    straggling_step_s: float | None
    detect_steps: int | None
    detect_s: float | None
    solve_s: float | None
    plan_s: float | None
    num_switches: int
    pause_s: float
    bytes_moved: int
    settle_s: float | None
    plan: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def phase_figures(
    phase: Phase,
    reference: Reference,
    *,
    steps: Sequence[StepView],
    plans: Sequence[PlanView],
    switches: Sequence[SwitchView],
) -> PhaseFigures:
    """Measures one phase of one run.

    Args:
        steps: of the phase, in order; `plans` and `switches` of the run.
    """
    rates = [phase.rates.get(device, 1.0) for device in range(reference.num_devices)]
    since = phase.first_step if phase.settled_step is None else phase.settled_step + 1
    train = [step for step in steps if step.phase == "train" and step.step >= phase.first_step]
    version = train[-1].plan_version if train else None
    steady = [step.step_s for step in train if step.step >= since and step.plan_version == version]
    begin_at = _begin_at(steps, phase.first_step)
    by_version = {plan.version: plan for plan in plans}
    ran = by_version.get(version) if version is not None else None
    document = None if ran is None or ran.document is None else Plan.from_json(ran.document)
    last = steps[-1].step if steps else phase.first_step
    asked = sorted(
        (
            plan
            for plan in plans
            if begin_at is not None
            and plan.version > phase.base_version
            and begin_at <= plan.created_at.timestamp()
            and (not steps or plan.created_at <= steps[-1].at)
        ),
        key=lambda plan: plan.version,
    )
    applied = [switch for switch in switches if switch.outcome == "applied" and phase.first_step <= switch.step <= last]
    step_s = _median(steady)
    bound_s = capacity_bound_s(reference.healthy_s, rates)
    first = asked[0] if asked else None
    is_moved = version is not None and version != phase.base_version
    first_steady = next((step for step in train if step.step >= since and step.plan_version == version), None)
    return PhaseFigures(
        situation=phase.name,
        is_settled=phase.is_settled,
        step_s=step_s,
        min_step_s=min(steady, default=None),
        max_step_s=max(steady, default=None),
        num_steps=len(steady),
        bound_s=bound_s,
        efficiency=None if step_s is None else bound_s / step_s,
        predicted_step_s=None if document is None else plan_step_s(document, reference.profile, phase.rates),
        predicted_bound_s=capacity_bound_s(reference.predicted_healthy_s, rates),
        straggling_step_s=_median(step.step_s for step in train if step.plan_version == phase.base_version)
        if is_moved
        else None,
        detect_steps=None if first is None else sum(step.at <= first.created_at for step in train),
        detect_s=None if first is None or begin_at is None else first.created_at.timestamp() - begin_at,
        solve_s=max((plan.solve_s for plan in asked if plan.solve_s is not None), default=None),
        plan_s=max(
            ((plan.solved_at - plan.created_at).total_seconds() for plan in asked if plan.solved_at), default=None
        ),
        num_switches=len(applied),
        pause_s=sum(switch.pause_s for switch in applied),
        bytes_moved=sum(switch.bytes_moved for switch in applied),
        settle_s=None
        if not is_moved or first_steady is None or begin_at is None
        else first_steady.at.timestamp() - first_steady.step_s - begin_at,
        plan=None if document is None else plan_line(document),
    )


def span_s(steps: Iterable[StepView], first_step: int, num_steps: int) -> float | None:
    """Wall seconds of so many steps from one on, with every pause and restart between them; None: not all there.

    Args:
        steps: in the order in which they were run; one that was run again counts as it was run last.
    """
    by_step = {step.step: step for step in steps}
    wanted = range(first_step, first_step + num_steps)
    if not wanted or not all(step in by_step for step in wanted):
        return None
    first, last = by_step[wanted[0]], by_step[wanted[-1]]
    return (last.at - first.at).total_seconds() + first.step_s


def plan_line(plan: Plan) -> str:
    """A plan in one line: micro-batches, then devices x layers of each stage, of every pipeline."""
    pipelines = [
        f"{pipeline.num_micro_batches}: "
        + " ".join(f"{'+'.join(map(str, stage.devices))}x{stage.num_layers}" for stage in pipeline.stages)
        for pipeline in plan.pipelines
    ]
    standby = f" | standby {' '.join(map(str, plan.standby))}" if plan.standby else ""
    return " | ".join(pipelines) + standby


def medians(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row for several runs of the same: medians of what is a number in all, else the first run's value."""
    result: dict[str, Any] = {}
    for name, value in rows[0].items():
        values = [row.get(name) for row in rows]
        is_number = all(isinstance(item, int | float) and not isinstance(item, bool) for item in values)
        result[name] = median(values) if is_number and len(rows) > 1 else value  # type: ignore[type-var]
    return result


def _begin_at(steps: Sequence[StepView], first_step: int) -> float | None:
    first = next((step for step in steps if step.step >= first_step), None)
    return None if first is None else first.at.timestamp() - first.step_s


def _median(values: Iterable[float]) -> float | None:
    found = [value for value in values if value == value]  # NaN: not measured
    return median(found) if found else None
